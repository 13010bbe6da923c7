/* SPDX-License-Identifier: Apache-2.0 */
/* rules.h: what a schedule is like: its data, its options, who takes part, and what goes wrong how
 * often. All of it is drawn from the seed, each schedule with its own few kinds of faults, so that
 * rare ones meet undisturbed. */
#ifndef TESSERA_TESTS_SIM_PREPD_RULES_H
#define TESSERA_TESTS_SIM_PREPD_RULES_H

#include "common/conf/conf.h"
#include "tests/sim/prepd/sim_data.h"

enum { MOST_SUPERVISORS = 8, MOST_JOBS = 3 };

/* What can go wrong; FAULTS(X) names each for people. */
#define SIM_FAULTS(X)                                                                              \
    X(FAULT_KILL_WORKER, "a worker is killed")                                                     \
    X(FAULT_ACCIDENT, "a worker crashes without an item's fault")                                  \
    X(FAULT_STOP_WORKER, "a worker is stopped")                                                    \
    X(FAULT_FREEZE_WORKER, "a worker hangs where no time limit reaches it")                        \
    X(FAULT_BREACH, "a worker breaks the protocol")                                                \
    X(FAULT_CUT_WORKER, "a worker's connection is cut")                                            \
    X(FAULT_HALF_OPEN, "a connection goes silent")                                                 \
    X(FAULT_STALL, "a connection stalls for a while")                                              \
    X(FAULT_CUT_RANK, "a rank's connection is cut")                                                \
    X(FAULT_CLOG, "a rank takes nothing from its socket for a while")                              \
    X(FAULT_RESTART_JOB, "a job starts again with other ranks")                                    \
    X(FAULT_KILL_DAEMON, "a daemon is killed, and its cache is lost")                              \
    X(FAULT_KILL_DAEMON_KEPT, "a daemon is killed, and its cache stays")                           \
    X(FAULT_STOP_DAEMON, "a daemon is stopped by a signal")                                        \
    X(FAULT_DRAIN_DAEMON, "a daemon is drained by a signal")                                       \
    X(FAULT_RELOAD, "a daemon reads its options again")                                            \
    X(FAULT_SCALE, "an operator changes the number of workers")                                    \
    X(FAULT_STATUS, "an operator asks for the status")                                             \
    X(FAULT_JUMP, "a daemon's clock jumps")                                                        \
    X(FAULT_KILL_PRINTS, "the process that makes fingerprints is killed")                          \
    X(FAULT_BAD_TIMES, "local workers of a daemon cannot begin for a while")                       \
    X(FAULT_NO_PROCESS, "the system has no process for the next child of a daemon")                \
    X(FAULT_NO_FILES, "held-out data cannot be opened when it is wanted next")                     \
    X(FAULT_NO_SIGHT, "a daemon cannot look at the next file that it wants to see")                \
    X(FAULT_NO_SHIP, "a daemon cannot read, or keep, the next file that it wants to send")         \
    X(FAULT_RUDE_PEER, "a stranger sends nonsense, or asks for what its role does not allow")      \
    X(FAULT_TWIN, "another comes in the place of a rank")                                          \
    X(FAULT_NO_STAT, "a daemon cannot ask for the size of the next file")                          \
    X(FAULT_NO_MEMORY, "there is no memory for what a daemon wants next")

typedef enum sim_fault {
#define SIM_FAULT_ENUM(name, words) name,
    SIM_FAULTS(SIM_FAULT_ENUM)
#undef SIM_FAULT_ENUM
        N_FAULTS
} sim_fault;

extern const char *const fault_words[N_FAULTS];

/* How a simulated worker differs from an honest one. */
typedef enum worker_bent {
    BENT_HONEST,
    BENT_SLOW,
    BENT_OTHER_BUILD,
    BENT_OTHER_DECODER,
    BENT_OTHER_TOKENIZER,
    BENT_BREACHER,     /* sends what no worker sends, now and then */
    BENT_LIES_RECORDS, /* tells false index records */
    BENT_LIES_ROWS,    /* changes what is in its rows */
    BENT_LIES_IDS,     /* says that its rows have other samples */
    BENT_LIES_ON,      /* says that it is at another item than it is */
    BENT_LIES_FAILED,  /* says that good samples cannot be decoded, and that bad ones can */
    BENT_STALLS,       /* says again and again that it is at its first items, and never answers */
    BENT_POOR_COPY,    /* its machine's copy of the data lacks some pictures */
    BENT_CANNOT_BEGIN, /* says why it cannot begin any work, and leaves */
    BENT_DIES_EARLY,   /* crashes before it has joined */
    BENT_MUTE,         /* joins and then never says its fingerprints */
    BENT_LIES_DIGEST,  /* changes what is in its rows, under the digest of what should be */
    BENT_LIES_KILLS,   /* makes rows that end whoever decodes them */
    BENT_FLOODS,       /* joins and leaves, again and again */
    BENT_HOGS,         /* takes leases and does nothing */
    N_BENTS,
    BENT_KILLED_EARLY = N_BENTS, /* somebody kills it before it has begun */
    BENT_FLIPS /* a local worker whose memory is bad: some of its rows are wrong */
} worker_bent;

typedef struct sim_job_rules {
    const char *stream;
    int ranks;
    int64_t start_ns;
    int again;    /* how often it starts over, from the first row */
    int64_t rows; /* after so many of a rank it starts over; otherwise at its end */
    bool refuses; /* its ranks refuse good rows */
} sim_job_rules;

/* Why nothing can ever work, so that the daemon has to give up and say so. */
typedef enum hopeless {
    HOPELESS_NOT,
    HOPELESS_WORKERS_SAY,    /* its workers say why they cannot begin */
    HOPELESS_WORKERS_DIFFER, /* its workers have another decoder than the daemon */
    HOPELESS_WORKERS_DIE,    /* its workers die before they have joined */
    HOPELESS_PRINTS_DIE,     /* the process that makes fingerprints dies each time */
    HOPELESS_PRINTS_SAY,     /* it says why it cannot make them */
} hopeless;

typedef struct sim_rules {
    sim_data_rules data[2]; /* train, eval */
    int n_daemons, n_supervisors, n_jobs, n_hosts;
    bool split;      /* a daemon serves its own ranks alone (prepd.ranks) */
    bool one_builds; /* the other daemons start when the first has built the index, and have it */
    int together;    /* ranks in a row that have the same daemon */
    int most_ranks;  /* of a job that starts again */
    int kept[MOST_SUPERVISORS];         /* workers of each supervisor */
    worker_bent bent[MOST_SUPERVISORS]; /* how all of them differ */
    bool ships[MOST_SUPERVISORS];       /* they have no copy of the data */
    bool keyed;                         /* peers have keys; otherwise addresses tell them apart */
    int key[MOST_SUPERVISORS];          /* which key its workers have */
    bool trusted[MOST_SUPERVISORS];     /* with the role of that name */
    bool newer[MOST_SUPERVISORS];       /* of another build, which makes the same rows */
    bool forges[MOST_SUPERVISORS];      /* they say that they are local: host, pid and a ticket */
    bool obstinate[MOST_SUPERVISORS];   /* they come back before they may */
    int lies_of;                        /* liars lie about one row in so many, all about the same */
    bool flips;                         /* the memory of one local worker at a time is bad */
    bool slow_local;                    /* local workers are slow */
    int64_t arrive_ns[MOST_SUPERVISORS];
    sim_job_rules job[MOST_JOBS];
    int64_t credit, row_ns, step_ns; /* of a rank; making a document; taking a row */
    int64_t calm_ns, fault_every_ns;
    int64_t recycle_leases; /* after so many a worker is restarted */
    int weight[N_FAULTS];   /* 0: it does not happen in this schedule */
    bool named[MOST_JOBS];  /* the job's ranks say in HELLO which run it is, and who they are */
    bool wordy;             /* ranks say more in HELLO than anybody needs */
    bool real_rows;         /* rows are true ROW messages, read by a true receiver */
    bool for_command;     /* the daemons are those of a command, which asks for the plan's report */
    bool drain_at_end;    /* an operator drains the daemons when all jobs are done */
    int hold_every;       /* a rank keeps one row in so many, and all after it, for long; 0: none */
    bool other_cursors;   /* ranks come with cursors of other data or weights as well, by mistake */
    bool appear;          /* files that the index missed are there once it is made */
    bool lists_by_hand;   /* each job that starts again brings samples that it has made up */
    int64_t bad_start_ns; /* for so long after a daemon's start its workers cannot begin */
    hopeless hopeless;
} sim_rules;

/* What whoever runs the simulator has chosen for all schedules. */
typedef struct sim_choice {
    bool thousand;       /* each has 128 daemons and 1,024 ranks */
    uint64_t real_every; /* one in so many has real rows */
} sim_choice;

/* The daemon from which a rank gets its rows. */
int rules_daemon_of(const sim_rules *rules, int rank);
/* Writes the ranks of a daemon as prepd.ranks has them; "" for all. */
enum { RANKS_TEXT = 400 };
void rules_ranks_of(const sim_rules *rules, int daemon, char out[RANKS_TEXT]);

/* Draws the rules and the daemon's options. The options borrow constant texts. */
void rules_draw(const sim_choice *choice, sim_random *luck, sim_rules *out, conf *out_options);

/* rules_rare.c: in some schedules makes one thing common that is rare in all others: bad data, slow
 * rows, workers that lie or lack files. Changes nothing else of the rules. */
void rules_draw_rare(sim_random *luck, sim_rules *inout, conf *inout_options);
/* A supervisor whose workers may be as they like, since there is an honest one beside them: the
 * last one, or one more. -1: there is none. */
int rules_free_supervisor(sim_random *luck, sim_rules *inout, const conf *options);

/* rules_seldom.c: adds what comes in a few of a hundred schedules each. */
void rules_draw_seldom(sim_random *luck, sim_rules *inout, conf *inout_options);

/* rules_hostile.c: keys and roles; in a third of the schedules, peers that mean harm, as many as
 * fit, and a pool of local workers that is empty, slow or on bad memory. */
void rules_draw_hostile(sim_random *luck, sim_rules *inout, conf *inout_options);

#endif
