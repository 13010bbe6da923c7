/* SPDX-License-Identifier: Apache-2.0 */
/* last_words.h: lets a crashing worker still say which sample it was on.
 *
 * A worker reports each sample before it begins (ON), but ZeroMQ sends that in a separate thread.
 * On a crash the handlers wait a moment for that thread, so that the dispatcher can try that one
 * sample first and not every sample of the row.
 *
 * A crash signal that another process sent (kill -SEGV) is not a crash: the worker then leaves with
 * the exit code PROC_EXIT_OUTSIDE + signal, and the dispatcher blames no sample. */
#ifndef TESSERA_PREPD_WORKER_LAST_WORDS_H
#define TESSERA_PREPD_WORKER_LAST_WORDS_H

#include <stdbool.h>

#include "common/base/status.h"

/* Installs handlers, on a stack of their own, for the crash signals that have none yet. A call of
 * exit() by a library in the middle of a lease also counts as a crash: the exit code becomes
 * PROC_EXIT_BUSY. */
WARN_UNUSED status last_words_install(void);
/* Says whether a lease is in work, so that there is something to wait for. */
void last_words_busy(bool busy);

#endif
