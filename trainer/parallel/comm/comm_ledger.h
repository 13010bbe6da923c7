/* SPDX-License-Identifier: Apache-2.0 */
/* comm_ledger.h: counts what this rank receives from others, call by call, and knows which call the
 * rank is in.
 *
 * The bytes counted are those that a rank has to receive, however the engine moves them. With n
 * ranks, `own` the bytes of this rank's piece and `all` the bytes of the whole:
 *
 *   all gather       (n - 1) x own
 *   reduce scatter   (n - 1) x own
 *   all reduce       (n - 1) x own + all - own, where own is this rank's share of the elements cut
 *                    into n shares of equal length, of which the last may be short (comm_cut)
 *   broadcast        all; 0 on the root
 *   all to all       what the others send
 *   recv             all
 *   send             0
 *
 * Calls are counted by the name of the group, the kind, and comm_at.what. Whoever queues a step
 * closes it (comm_ledger_close_step). One thread counts; comm_ledger_now may be called from another
 * one at the same time. */
#ifndef TESSERA_TRAINER_PARALLEL_COMM_LEDGER_H
#define TESSERA_TRAINER_PARALLEL_COMM_LEDGER_H

#include <stdio.h>

#include "trainer/parallel/comm/comm.h"

/* All calls of one kind, for one purpose, in one group. */
typedef struct comm_tally {
    char group[COMM_NAME_MAX];
    comm_kind kind;
    const char *what;                   /* comm_at.what */
    int64_t calls, bytes;               /* since the start */
    int64_t step_calls, step_bytes;     /* of the last closed step */
    int64_t closed_calls, closed_bytes; /* since the start, when the last step was closed */
} comm_tally;

typedef struct comm_ledger comm_ledger;

/* Which call the rank is in, or was in last. */
typedef struct comm_now {
    bool inside; /* a call has begun and not returned */
    char group[COMM_NAME_MAX];
    comm_kind kind;
    const char *what;        /* of that call, or else of the last one; NULL before the first */
    int64_t layer, since_ns; /* its layer, -1 for none; clock_ns() when it began, or ended */
} comm_now;

WARN_UNUSED status comm_ledger_new(comm_ledger **out);
void comm_ledger_free(comm_ledger **ledger); /* accepts a pointer to NULL */

/* All functions below accept a ledger that is NULL, which counts nothing. */

/* To be called before a call in which this rank receives `bytes`. */
void comm_ledger_enter(comm_ledger *ledger, const comm *group, comm_kind kind, comm_at at,
                       int64_t bytes);
/* Adds bytes that only the device knew and that the host learns after the step was closed: they
 * count for the step that was closed last. */
void comm_ledger_late(comm_ledger *ledger, const comm *group, comm_kind kind, const char *what,
                      int64_t bytes);
/* To be called before the messages collected since comm_begin run. */
void comm_ledger_wait(comm_ledger *ledger);
/* To be called when the call has returned. */
void comm_ledger_leave(comm_ledger *ledger);
/* For a captured piece of a step, which runs again without its calls being made again. What is
 * counted between captured(piece, true) and captured(piece, false) is remembered as piece number
 * `piece`, and each replayed(piece) counts it once more. ST_NO_MEMORY. */
WARN_UNUSED status comm_ledger_captured(comm_ledger *ledger, int64_t piece, bool begins);
void comm_ledger_replayed(comm_ledger *ledger, int64_t piece);
/* Makes all that was counted since the last call of this one step. */
void comm_ledger_close_step(comm_ledger *ledger);
comm_now comm_ledger_now(comm_ledger *ledger);

/* *out: the tallies in the order of their first calls, owned by the ledger. Returns how many. */
int comm_ledger_list(const comm_ledger *ledger, const comm_tally **out);
/* The tally of these calls, owned by the ledger; NULL if there was no such call. */
const comm_tally *comm_ledger_find(const comm_ledger *ledger, const char *group, comm_kind kind,
                                   const char *what);
/* Writes the last closed step as a table. */
void comm_ledger_print(const comm_ledger *ledger, FILE *to);

const char *comm_kind_name(comm_kind kind); /* such as "all gather" */

#endif
