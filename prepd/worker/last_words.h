/* last_words.h: a worker that crashes waits a moment first, so that ZeroMQ's thread can still send
 * which sample it was on (ON): the dispatcher then tries that one first, not the whole row.
 * A crash signal that another process sent (kill -SEGV) is no crash: the worker then leaves with
 * the code PROC_EXIT_OUTSIDE + signal, and the dispatcher blames nobody. */
#ifndef TESSERA_PREPD_WORKER_LAST_WORDS_H
#define TESSERA_PREPD_WORKER_LAST_WORDS_H

#include <stdbool.h>

#include "common/base/status.h"

/* Handlers for the crash signals that have none yet, on a stack of their own, and for exit() from
 * within a library, which then has the code PROC_EXIT_BUSY. */
WARN_UNUSED status last_words_install(void);
/* Whether there is something to wait for: a lease is in work. */
void last_words_busy(bool busy);

#endif
