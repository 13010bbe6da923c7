/* SPDX-License-Identifier: Apache-2.0 */
/* sim_workers.h: the workers of a schedule, and the supervisors of those elsewhere. */
#ifndef TESSERA_TESTS_SIM_PREPD_SIM_WORKERS_H
#define TESSERA_TESTS_SIM_PREPD_SIM_WORKERS_H

#include "prepd/serve/core/state/dispatch_state.h"
#include "tests/sim/prepd/heard.h"
#include "tests/sim/prepd/rules.h"

typedef enum worker_state {
    WORKER_GONE,
    WORKER_STARTING,
    WORKER_LOADING, /* it has its TERMS */
    WORKER_IDLE,
    WORKER_BUSY,
} worker_state;

enum { MOST_ITEMS = 256, INBOX = 8, KILLED = -1 };

/* The lease that a worker is at. */
typedef struct sim_job {
    uint64_t number;
    lease_kind kind;
    bool each;              /* it says every record that it is at */
    heard *text;            /* the lease; owned */
    const json_value *said; /* its JSON */
    wire_msg *files;        /* the message that it came with; owned */
    int64_t began_ns;       /* when its files are read, at the earliest */
    int64_t n_items, at;
    int64_t item[MOST_ITEMS]; /* samples, complements of them (prefixes), or pictures */
    int64_t told_ns;
    const char *doom; /* what the item in work will do to the worker; NULL: nothing */
    proc_end doom_how;
    bool frozen; /* it has stopped making progress, and no time limit ends it */
} sim_job;

typedef struct sim_worker {
    worker_state state;
    worker_bent bent;
    bool local, proved, stopped, leaving, breached;
    bool ship;                     /* it has no copy of the data: files come with its leases */
    int daemon, supervisor, place; /* supervisor -1: a local one */
    pid_t pid;
    char ticket[TICKET_TEXT]; /* that its daemon gave it; "": none */
    int host, link, turn;
    uint64_t terms; /* a hash of them */
    bool videos;    /* they say that the data has some */
    int64_t leases;
    sim_job job;
    uint64_t job_before;    /* the number of the lease before it */
    wire_msg *inbox[INBOX]; /* [n_inbox] */
    int n_inbox;
    int64_t heard_ns;
    int64_t begun_ns; /* when it started */
    int stalled;      /* how often it said the same again */
    int64_t asked_ns; /* when it was asked to leave; 0: it was not */
    int misses_told,
        n_missed;  /* files that it misses and the daemon has: in its last answer; in all */
    int n_terms;   /* how often it was sent its TERMS */
    child_end end; /* how it went */
    int64_t ended_ns;
    int64_t wait_ns; /* how long its daemon told it to stay away */
} sim_worker;

enum { MOST_KEPT = 4, PLACE_LEFT = -2 };

/* `prepd worker` on another machine. */
typedef struct sim_supervisor {
    int daemon, host, link, n_places;
    bool stopping, sent_away;
    worker_bent bent;      /* of its workers */
    int worker[MOST_KEPT]; /* -1: to be started at start_ns; PLACE_LEFT: it left for good */
    int64_t start_ns[MOST_KEPT];
} sim_supervisor;

#endif
