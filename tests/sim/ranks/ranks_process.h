/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_process.h: the simulated ranks: what they know, what they are at, and how the events of the
 * world reach them. */
#ifndef TESSERA_TESTS_SIM_RANKS_PROCESS_H
#define TESSERA_TESTS_SIM_RANKS_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/sim/ranks/ranks_disk.h"
#include "trainer/parallel/core/call_deadline.h"
#include "trainer/parallel/core/link_core.h"

typedef struct world world;

typedef enum work_state {
    WORK_JOINS,
    WORK_COMPUTES,
    WORK_WAITS_ROWS,
    WORK_AGREES, /* on the shape of its micro-batch, before the first call of a step */
    WORK_CALLS,
    WORK_HANGS,
    WORK_WAITS_SAVE, /* for its own save before this one, or before it leaves */
    WORK_MAKES_FOLDER,
    WORK_LEAVES,
    WORK_OVER
} work_state;

typedef struct process {
    int64_t start_ns;
    int64_t clock_from, clock_ppm;
    bool alive; /* it has started and has not ended */
    bool ended; /* it ended by itself: `well`, or with `words` */
    bool well;
    bool forced;  /* by LINK_EXIT */
    bool stopped; /* SIGSTOP */
    bool cut;     /* its machine is cut off */
    bool lost_power;
    char words[1024]; /* its last error */
    char lost[1024];  /* what ended the job, as it heard */
    link_core *core;
    uint64_t time_wish, work_wish;            /* the number of the last one; others are stale */
    int wire_of[RANKS_MOST + LINK_STRANGERS]; /* by conn; -1: none */
    int64_t reach_until;                      /* local */
    work_state work;
    save_state saving;
    int told_step; /* what rank 0 knows of it by its note: of which step's save */
    save_mark told;
    char told_text[80];
    int part;                  /* of its step: which of the CALLS comes next */
    bool leaves, leaves_badly; /* it waits for its save before */
    char reason[512];
    bool waits, joined;
    bool left_well; /* its work was done when it left */
    int step;
    call_deadline call;
    int64_t stopped_at, still_ns;   /* when it was stopped; for how long the last time */
    int64_t lost_at;                /* when `lost` was heard */
    bool missed_work, missed_reach; /* these were due while it was stopped */
} process;

/* ---- ranks_process.c: the shell of one rank ---- */

/* Asks all ranks for the largest of these. */
void process_need(world *all, int rank, const uint8_t need[LINK_NEEDS]);

void process_start(world *all, int rank);
void process_time(world *all, int rank, uint64_t wish);
void process_reach(world *all, int rank);
void process_bytes(world *all, int rank, int conn, const void *bytes, size_t size);
void process_gone(world *all, int rank, int conn, bool reset);
/* Does what its core has answered (ranks_actions.c). */
void process_do(world *all, int rank, const link_action *action);
/* Takes connections that wait to be accepted. */
void process_accept(world *all);
/* The rank tells rank 0 how its part of its save has failed. */
void process_tell(world *all, int rank, save_mark mark, const char *text);
void process_leave(world *all, int rank, const char *failed);
/* Ends the process without its doing. power: its machine too, which tells nobody. */
void process_kill(world *all, int rank, bool power);
void process_continue(world *all, int rank);
void process_free(world *all, int rank);
bool process_runs(const world *all, int rank);

/* ---- ranks_work.c: what a rank does besides ---- */

void work_begin(world *all, int rank);
void work_go_on(world *all, int rank, uint64_t wish);
/* An action of the rank's save has ended. */
void work_saved(world *all, int rank);
/* The ranks have agreed: the largest that any of them needs. */
void work_agreed(world *all, int rank, const uint8_t most[LINK_NEEDS]);
/* Looks at calls that may complete now. */
void work_look(world *all);

/* ---- ranks_work.c and ranks_calls.c, between each other ---- */

/* The rank's work goes on after this time; earlier wishes are void. */
void work_wish_in(world *all, int rank, int64_t after_ns);
/* How long a rank that waits for others waits before it looks again. */
int64_t work_look_ns(const world *all);
/* Asks for the shape of the step's micro-batch, which all ranks do. */
void work_ask_shape(world *all, int rank);
void work_enter_call(world *all, int rank);
void work_look_at_call(world *all, int rank);
void work_end_call(world *all, int rank); /* a call has completed */
void work_fail(world *all, int rank, const char *why);

/* ---- ranks_saves.c ---- */

/* A rank begins its part of its step's checkpoint. */
void saves_begin(world *all, int rank);
void saves_go_on(world *all, int rank, uint64_t wish);

#endif
