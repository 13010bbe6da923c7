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
#include "prepd/serve/core/dispatch.h"
#include "prepd/serve/core/dispatch_state.h"
#include "proto/decisions.h"
#include "proto/row_order.h"
#include "tests/sim/common/sim_log.h"
#include "tests/sim/common/sim_queue.h"
#include "tests/sim/common/sim_random.h"
#include "tests/sim/prepd/expected.h"
#include "tests/sim/prepd/heard.h"
#include "tests/sim/prepd/rules.h"
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
    bool known;         /* it may send messages as long as a row */
    bool wants_report;  /* of the plan; then it leaves */
    bool trespasses;    /* it asks for what it has no role for */
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
    bool touched;     /* something has happened to it since its state was looked at last */
    int wanted;       /* local workers that its operators want */
    bool third_asked; /* one more was there to decide between two, when it was looked at last */
    int64_t third_ns; /* from when on its third worker has had nothing to decide; 0 */
    bool any_worked;  /* a local worker has answered a lease in this life */
    int64_t bad_until_ns;
    worker_bent bad_bent;          /* of local workers that start before bad_until_ns */
    int most_seats;                /* workers at once, of this life */
    int64_t skew_ns;               /* what its clock is ahead of the world's */
    int64_t turn_ns;               /* when its next turn is due */
    bool kept[2];                  /* its cache has the index of train, of eval */
    int prints_pid, prints_deaths; /* deaths in a row */
    bool prints_wanted[N_PRINTS];
    bool for_good, draining_asked;    /* an operator has drained it, or has said so */
    int64_t leave_by_ns, drain_by_ns; /* when it must have ended; 0: it has time */
    bool was_blind, had_none;
    int reloads;
    int64_t files_sent[MOST_LEASES_KNOWN];        /* bytes that came with a lease, by its number */
    bool no_process, no_files, no_sight, no_ship; /* the next of these fails */
    bool saw_trouble; /* it could not look at a file, since this was cleared last */
} sim_daemon;

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
    int host, link, turn;
    uint64_t terms; /* a hash of them */
    bool videos;    /* they say that the data has some */
    int64_t leases;
    sim_job job;
    uint64_t job_before;    /* the number of the lease before it */
    wire_msg *inbox[INBOX]; /* [n_inbox] */
    int n_inbox;
    int64_t heard_ns;
    int64_t begun_ns; /* when it started, by its daemon's clock */
    int stalled;      /* how often it said the same again */
    int64_t gone_ns;  /* when it ended */
    int misses_told,
        n_missed;     /* files that it misses and the daemon has: in its last answer; in all */
    int n_terms;      /* how often it was sent its TERMS */
    child_end end;    /* how it went */
    char before[120]; /* what its supervisor says of the one before it; "" if nothing */
} sim_worker;

enum { MOST_KEPT = 4, PLACE_LEFT = -2, MOST_LIED = 256 };

/* `prepd worker` on another machine. */
typedef struct sim_supervisor {
    int daemon, host, link, n_places;
    bool stopping, sent_away;
    worker_bent bent;      /* of its workers */
    int worker[MOST_KEPT]; /* -1: to be started at start_ns; PLACE_LEFT: it left for good */
    int64_t start_ns[MOST_KEPT];
    char before[MOST_KEPT][120];
} sim_supervisor;

typedef enum rank_state {
    RANK_AWAY,
    RANK_GREETING,
    RANK_READING,
    RANK_ENDED,
    RANK_GONE
} rank_state;

enum { KEPT_CURSORS = 64, HELD_ROWS = 64 };

/* One consumer of a job. */
typedef struct sim_rank {
    int job, rank, daemon, link, turn;
    rank_state state;
    bool astray;         /* it asks a daemon that does not serve it */
    bool refuses;        /* it has refused a row */
    uint64_t next;       /* the row that must come next, if any is left */
    uint64_t cursor_row; /* to which its cursor leads */
    bool any_left;
    char *cursor; /* of the last row that it took; owned; NULL: none */
    int64_t credit, under_way, granted_back;
    int64_t held[HELD_ROWS]; /* bytes of rows that it has not given back yet */
    int n_held;
    uint64_t rows;
    int64_t asked_ns; /* when it sent HELLO */
    struct {
        uint64_t step;
        char *cursor; /* owned; after its last row of that step */
    } steps[KEPT_CURSORS];
    uint64_t done_steps; /* steps below this one are complete here */
    decisions heard;     /* what its rows said of their bad samples */
    row_order order;     /* with real rows: as a real consumer keeps it */
} sim_rank;

/* A job of several ranks that read one stream together. */
typedef struct sim_stream_job {
    const char *stream; /* "train", "eval" or "sample" */
    reference *rows;
    int ranks, first; /* its ranks are first .. first + ranks - 1 */
    int lives;
    uint64_t begin; /* the row at which its present life began */
    char *cursor;   /* with which it began; owned; NULL: at the start of the stream */
    decisions told; /* the bad samples that its ranks bring */
    int n_reading;  /* its ranks that have not come to the end */
    uint8_t *taken; /* [rows->n_rows] how often each row was taken; owned; NULL for a stream without
                       end */
} sim_stream_job;

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
    bool thousand; /* a schedule of 128 daemons and 1,024 ranks */
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
    int64_t lied[MOST_LIED]; /* [n_lied] rows that some worker said other samples of */
    int liar[MOST_LIED];     /* [n_lied] the number of that worker */
    int n_lied;
    int64_t doubted[MOST_LIED]; /* [n_doubted] samples that some worker has lied about */
    int n_doubted;
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
