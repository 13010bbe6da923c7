/* comm_ledger.h: what this rank gets from others, counted call by call, and which call it is in.
 *
 * Bytes are those a rank must receive, whatever the engine does beside: n ranks, `own` bytes of
 * this rank's piece, `all` of the whole:
 *
 *   all gather      (n - 1) x own          reduce scatter  (n - 1) x own
 *   all reduce      (n - 1) x own + all - own; own: the rank's share of elements cut into n pieces
 *                   of equal size, the last ones short or empty
 *   broadcast       all; the root: 0       all to all      what others send
 *   recv            all                    send            0
 *
 * Counted by the group's name, the kind, and the words of comm_at. A step is closed by whoever
 * queued it. One thread counts; comm_ledger_now may be asked by another. */
#ifndef TESSERA_TRAINER_PARALLEL_COMM_LEDGER_H
#define TESSERA_TRAINER_PARALLEL_COMM_LEDGER_H

#include <stdio.h>

#include "trainer/parallel/comm.h"

typedef struct comm_tally {
    char group[COMM_NAME_MAX];
    comm_kind kind;
    const char *what;
    int64_t calls, bytes;           /* since the start */
    int64_t step_calls, step_bytes; /* of the last closed step */
    int64_t closed_calls, closed_bytes;
} comm_tally;

typedef struct comm_ledger comm_ledger;

/* Where the rank is. */
typedef struct comm_now {
    bool inside; /* a call has not come back */
    char group[COMM_NAME_MAX];
    comm_kind kind;
    const char *what; /* of the call, or the last one; NULL before the first */
    int64_t layer, since_ns;
} comm_now;

WARN_UNUSED status comm_ledger_new(comm_ledger **out);
void comm_ledger_free(comm_ledger **l);
/* All of these accept NULL, a ledger that keeps nothing. */
void comm_ledger_enter(comm_ledger *l, const comm *c, comm_kind kind, comm_at at, int64_t bytes);
/* Bytes of calls of a closed step that only the device knew: those of the last step that told. */
void comm_ledger_late(comm_ledger *l, const comm *c, comm_kind kind, const char *what,
                      int64_t bytes);
void comm_ledger_wait(comm_ledger *l); /* calls between begin and end happen now */
void comm_ledger_leave(comm_ledger *l);
/* Calls that are captured and run again without being made: what is counted between begins and not
 * counts as `piece`, again whenever that runs. */
WARN_UNUSED status comm_ledger_captured(comm_ledger *l, int64_t piece, bool begins);
void comm_ledger_replayed(comm_ledger *l, int64_t piece);
/* What was counted since the last time is a step. */
void comm_ledger_close_step(comm_ledger *l);
comm_now comm_ledger_now(comm_ledger *l);

/* In the order of their first call; the ledger's. */
int comm_ledger_list(const comm_ledger *l, const comm_tally **out);
/* NULL if there was no such call. */
const comm_tally *comm_ledger_find(const comm_ledger *l, const char *group, comm_kind kind,
                                   const char *what);
/* The last closed step as a table. */
void comm_ledger_print(const comm_ledger *l, FILE *to);

const char *comm_kind_name(comm_kind kind); /* "all gather" */

#endif
