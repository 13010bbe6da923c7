/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_world.h: a simulated job of ranks: processes that run the real core of the rank link, the
 * connections between them, the work that they do, and what goes wrong. One process, virtual time;
 * a seed decides everything.
 *
 * Times are virtual nanoseconds from the beginning, except where a name says `local`: each machine
 * has its own clock, which began at another time and is a little fast or slow. */
#ifndef TESSERA_TESTS_SIM_RANKS_WORLD_H
#define TESSERA_TESTS_SIM_RANKS_WORLD_H

#include "tests/sim/common/sim_log.h"
#include "tests/sim/common/sim_main.h"
#include "tests/sim/common/sim_queue.h"
#include "tests/sim/common/sim_random.h"
#include "tests/sim/ranks/ranks_bounds.h"
#include "tests/sim/ranks/ranks_disk.h"
#include "tests/sim/ranks/ranks_process.h"
#include "tests/sim/ranks/ranks_wires.h"

typedef enum sim_kind {
    SIM_START,    /* a process starts */
    SIM_TIME,     /* a core's time is due; word: of which core's wish this is */
    SIM_REACH,    /* a rank tries to reach rank 0 */
    SIM_ARRIVE,   /* the next segment of a wire arrives; who: wire * 2 + direction */
    SIM_WORK,     /* a rank's work goes on; word: of which wish */
    SIM_SAVE,     /* an action of a save has ended; word: of which wish */
    SIM_FAULT,    /* who: number of the fault */
    SIM_MEND,     /* the fault ends */
    SIM_STRANGER, /* someone who is no rank connects, or goes on */
    SIM_PROMPT,   /* who: number of a fault that the others must have noticed by now */
    SIM_JUDGE     /* all ranks must have ended */
} sim_kind;

typedef enum fault_kind {
    FAULT_KILL,
    FAULT_POWER,
    FAULT_STOP,
    FAULT_CUT,
    FAULT_FAILS,
    FAULT_HANGS,
    FAULT_RESET,
    FAULT_LATE,
    FAULT_MISSING,
    FAULT_OPTIONS,
    FAULT_STRANGER,
    FAULT_ROWS,
    FAULT_SLOW,
    FAULT_KINDS
} fault_kind;

typedef struct fault {
    fault_kind kind;
    int rank;
    int64_t at_ns, for_ns;
    int step;     /* of FAULT_FAILS, FAULT_HANGS and FAULT_ROWS */
    bool at_work; /* it struck while all ranks were at work */
    bool loses;   /* and for so long that the others must lose the rank */
} fault;

typedef struct call_state {
    bool came[RANKS_MOST];
    int n_came, last; /* how many have come; which of them last */
    bool complete;
    int64_t complete_ns;
} call_state;

struct world {
    int size, steps, save_every; /* 0: no checkpoints */
    sim_disk disk;
    int64_t slow_disk_ns; /* how long all writes took that took very long */
    double silence_s, timeout_s;
    int64_t silence_ns, call_ns, compute_ns; /* call_ns: how long a call may take */
    int64_t latency_ns;
    bool one_machine;
    process rank[RANKS_MOST];
    tcp_wire wire[WIRES_MOST];
    int n_wires;
    call_state call[(STEPS_MOST + 2) * CALLS];
    fault fault[FAULTS_MOST];
    int n_faults;
    int stranger; /* what it does; its wire is stranger_wire */
    int stranger_wire;

    int64_t now_ns;
    sim_queue queue;
    sim_log log;
    sim_random wires, works, chances;
    uint64_t events; /* given to cores */

    /* for the verdict */
    bool guilty[RANKS_MOST]; /* something happened to it that may end the job */
    bool fatal;              /* something happened that must end the job */
    int64_t disturbed_ns;    /* the last disturbance, or the end of one */
    char broken[512];        /* the first invariant that did not hold */
};

/* ---- ranks_world.c ---- */

sim_played world_play(uint64_t seed, FILE *trace);
void world_put(world *all, int64_t at_ns, sim_kind kind, int who, uint64_t word);
/* Notes that an invariant does not hold. Only the first is kept. */
void world_broken(world *all, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- ranks_fault_plan.c ---- */

void faults_draw(world *all, sim_random *from);
void faults_begin(world *all, int number);
void faults_end(world *all, int number);
void faults_stranger(world *all);
const char *faults_name(fault_kind kind);
/* The fault of this kind that this rank has; NULL: none. */
fault *faults_find(world *all, fault_kind kind, int rank);

/* ---- ranks_verdict.c ---- */

/* When all ranks must have ended. */
int64_t verdict_deadline(const world *all);
/* Called when a fault strikes: whether it may, or must, end the job; and when it must have been
 * noticed, after SIM_PROMPT. */
void verdict_fault(world *all, int number);
void verdict_noticed(world *all, int number);
/* Called when a process has ended by itself. */
void verdict_process(world *all, int rank);
/* Called at the deadline. */
void verdict_all(world *all);

/* ---- ranks_names.c: about the words of a rank that has ended badly ---- */

/* Whether they name a cause. */
bool names_cause(const world *all, int rank);
/* Whether they say that this rank was itself stopped. */
bool names_itself(const world *all, int rank);
/* Whether they name this culprit, without any alternative. */
bool names_alone(const world *all, int rank, int culprit);

#endif
