/* rows_agreed.h: ranks that evaluate together go on, or end, at the same row. Each has the held-out
 * rows from the daemon by itself, so one may lack a row that another has, or find no room on a
 * disk: before the calls of a row all tell each other how they are. */
#ifndef TESSERA_TRAINER_EVAL_ROWS_AGREED_H
#define TESSERA_TRAINER_EVAL_ROWS_AGREED_H

#include "trainer/run/session.h"

/* mine: how this rank is, with n rows for what comes next. Every rank calls it. ST_OK where all are
 * well and have as many; else the code of the first that is not, on all of them, with its text and
 * rank. A signal that one has heard stops all (stop.h). Of one rank: mine. */
WARN_UNUSED status agree_rows(const session *s, status mine, int64_t n);

#endif
