/* rows_agreed.h: keeps ranks that evaluate together at the same row. Each rank receives the
 * held-out rows by itself, so one may miss a row that another has, or run out of disk space. Before
 * the collective calls of a row all ranks tell each other their status, so that they go on or end
 * together. */
#ifndef TESSERA_TRAINER_EVAL_ROWS_AGREED_H
#define TESSERA_TRAINER_EVAL_ROWS_AGREED_H

#include "trainer/run/session.h"

/* mine: this rank's status; `count`: how many rows it has for the next round. Every rank calls it.
 * ST_OK if all ranks are well and have equally many rows; else, on all of them, the code of the
 * first rank that is not, with its text and number. A signal that one rank has received stops all
 * (stop.h). On a single rank it returns mine. */
WARN_UNUSED status agree_rows(const session *run, status mine, int64_t count);

#endif
