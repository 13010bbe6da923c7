/* SPDX-License-Identifier: Apache-2.0 */
/* sim_daemons.h: the daemons of a schedule, and the connections to them. */
#ifndef TESSERA_TESTS_SIM_PREPD_SIM_DAEMONS_H
#define TESSERA_TESTS_SIM_PREPD_SIM_DAEMONS_H

#include "prepd/serve/core/state/dispatch_state.h"
#include "tests/sim/prepd/rules.h"

/* Who is at the far end of a link. */
typedef enum end_kind { END_WORKER, END_SUPERVISOR, END_RANK, END_OPERATOR, END_STRANGER } end_kind;

/* A connection to a daemon. */
typedef struct sim_link {
    end_kind kind;
    int who, daemon, incarnation; /* of the daemon's life that it belongs to */
    door at;
    wire_peer peer;
    bool cut;               /* nothing gets through from now on, in either direction */
    bool closed;            /* the far end has closed it */
    bool served;            /* the daemon is there; false once it has ended in good order */
    int64_t gone_ns;        /* from when the daemon's messages find nobody; INT64_MAX */
    int64_t up_ns, down_ns; /* when the last message of each direction arrives */
    int64_t clogged_ns;     /* until then the far end takes nothing from its socket */
    int unread;             /* messages sent to it meanwhile */
    int64_t latency_ns;
    int64_t opened_ns;  /* by the daemon's clock */
    bool known;         /* it may send messages as long as a row */
    bool wants_report;  /* of the plan; then it leaves */
    bool trespasses;    /* it asks for what it has no role for */
    int twin_of;        /* 1 more than the number of the rank in whose place it comes; 0 */
    int n_refused;      /* errors that a stranger has received */
    int n_errors;       /* errors that were sent to it */
    int64_t used_bytes; /* of a consumer, in work and under way, when it was looked at last */
} sim_link;

enum { MOST_LEASES_KNOWN = 1024 };

typedef struct sim_daemon {
    struct simulation *sim;
    int number, incarnation;
    dispatch *state;        /* NULL: it is down */
    conf options;           /* borrows its texts */
    char ranks[RANKS_TEXT]; /* prepd.ranks; borrowed by options */
    bool listens;           /* its sockets are bound */
    bool stopping;
    bool touched;      /* something has happened to it since its state was looked at last */
    int wanted;        /* local workers that its operators want */
    int64_t waited_ns; /* when something waited for a local worker that decides */
    int64_t taken_ns;  /* when no row had to be taken from a silent worker */
    bool any_worked;   /* a local worker has answered a lease in this life */
    int64_t bad_until_ns;
    worker_bent bad_bent;          /* of local workers that start before bad_until_ns */
    int most_seats;                /* workers at once, of this life */
    int64_t skew_ns;               /* what its clock is ahead of the world's */
    int64_t turn_ns;               /* when its next turn is due */
    bool kept[2];                  /* its cache has the index of train, of eval */
    int prints_pid, prints_deaths; /* deaths in a row */
    bool prints_wanted[N_PRINTS];
    bool for_good, draining_asked;       /* an operator has drained it, or has said so */
    int64_t leave_by_ns, drain_by_ns;    /* when it must have ended; 0: it has time */
    bool was_blind, had_none, unstarted; /* its last worker could not be started */
    int cut_deciders; /* connections cut to workers that decide on other machines: nobody says how
                         these ended, so each counts as a death */
    int reloads;
    int64_t files_sent[MOST_LEASES_KNOWN]; /* bytes that came with a lease, by its number */
    bool no_process, no_files, no_sight, no_ship, no_stat; /* the next of these fails */
    bool no_memory;    /* there is none for the next file that it sends */
    bool ran_short;    /* there was none, so it has to end */
    int64_t short_ns;  /* when one was refused; 0: none was */
    int64_t short_in;  /* of its requests for memory, this one is refused; 0: none */
    bool saw_trouble;  /* it could not look at a file, since this was cleared last */
    bool knew_no_size; /* nor ask for a file's size */
} sim_daemon;

#endif
