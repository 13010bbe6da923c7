/* SPDX-License-Identifier: Apache-2.0 */
/* sim.h: the simulated world around the dispatcher's core: everyone who takes part in a schedule,
 * the connections between them, and the events that are still to come.
 *
 * A schedule is one seed. From it come its rules (rules.h), the data, every delay and every fault.
 * Who takes part lies in arrays; events name them by their numbers. A number is never given twice
 * in a schedule, except that of a daemon, so what is late for someone who has gone is recognised.
 *
 *   EVENT ---> network.c, workers.c, sim_consumers.c ... ---> core (daemons.c) ---> world.h --->
 * EVENTs after each: invariants.c looks at everything */
#ifndef TESSERA_TESTS_SIM_PREPD_SIM_H
#define TESSERA_TESTS_SIM_PREPD_SIM_H

#include "common/base/arena.h"
#include "prepd/serve/core/state/dispatch.h"
#include "prepd/serve/core/state/dispatch_state.h"
#include "proto/row/bad_samples.h"
#include "proto/row/row_order.h"
#include "tests/sim/common/sim_log.h"
#include "tests/sim/common/sim_queue.h"
#include "tests/sim/common/sim_random.h"
#include "tests/sim/prepd/expected.h"
#include "tests/sim/prepd/heard.h"
#include "tests/sim/prepd/rules.h"
#include "tests/sim/prepd/sim_daemons.h"
#include "tests/sim/prepd/sim_readers.h"
#include "tests/sim/prepd/sim_workers.h"
#include "tests/sim/prepd/stats.h"

static const int64_t US = 1000, MS = 1000000, SECOND = 1000000000;

/* Kinds of events. `who` is the number of the one that it happens to. */
typedef enum event_kind {
    EVENT_UP,         /* a message reaches the daemon; who: the link, data: the message */
    EVENT_DOWN,       /* a message reaches the other end of a link */
    EVENT_ENDED,      /* the other end of a link sees that the connection has ended */
    EVENT_TURN,       /* a daemon's loop turns */
    EVENT_DAEMON,     /* a daemon starts */
    EVENT_SECTION,    /* a section's files are open; word: 0 train, 1 eval */
    EVENT_PRINTS,     /* the process that makes fingerprints goes on; word: its pid */
    EVENT_CHILD,      /* a daemon hears that a local worker has ended; word: the worker */
    EVENT_WORKER,     /* a worker goes on; word: its turn (sim_worker.turn), or KILLED */
    EVENT_SUPERVISOR, /* a supervisor looks around */
    EVENT_RANK,       /* a rank goes on; word: its turn */
    EVENT_FAULT,      /* something breaks */
    EVENT_DEADLINE,   /* the schedule should have ended by now */
} event_kind;

/* How many local workers an item of a lease has killed: alone, and with the rest of the lease. */
enum { MOST_DEATHS = 512 };
typedef struct sim_deaths {
    int daemon, life;
    uint64_t lease;
    int64_t item;
    int alone, whole;
} sim_deaths;

/* How many workers have ended by their own doing at a lease (blame.h). */
enum { MOST_BLAMES = 512 };
typedef struct sim_blame {
    int daemon, life;
    uint64_t lease;
    int ends;
} sim_blame;

typedef struct simulation {
    uint64_t seed;
    sim_choice choice;
    bool other_data[2]; /* the index of train, of eval has been made again, with other files */
    sim_rules rules;
    conf options;
    sim_data data[2]; /* train, eval */
    conf data_options[2];
    char *stream_json[2];
    reference expected[3]; /* train, eval, sample; made when they are wanted */
    bool expected_made[3];
    sim_random delays, faults, people, lies;
    sim_queue queue;
    sim_log log;
    int64_t now_ns, calm_ns; /* no new fault after calm_ns */
    sim_daemon *daemon;      /* [rules.n_daemons] */
    sim_link *link;
    int n_links, links_room;
    sim_worker **worker;
    int n_workers, workers_room;
    sim_supervisor supervisor[MOST_SUPERVISORS];
    sim_rank **rank;
    int n_ranks, ranks_room;
    sim_stream_job job[MOST_JOBS];
    int n_jobs;
    int *accidents; /* [samples + pictures of both] deaths that were no item's doing, while alone */
    sim_deaths deaths[MOST_DEATHS]; /* [n_deaths] */
    int n_deaths;
    sim_blame blame[MOST_BLAMES]; /* [n_blames] */
    int n_blames;
    int64_t most_buffer; /* the largest prepd.buffer_bytes so far */
    heard_book heard;
    struct codec *coder; /* with real rows, else NULL; owned */
    arena row_memory;    /* of the real row that is being made or read */
    pid_t next_pid;
    sim_stats *stats;
    bool over;
    char broken[512]; /* the first invariant that did not hold */
} simulation;

#endif
