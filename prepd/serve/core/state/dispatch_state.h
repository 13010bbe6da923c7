/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch_state.h: what the dispatcher knows, and the functions by which the files of core/ call
 * each other. The shell (prepd/serve) reads it for status lines and metrics, and calls dispatch.h.
 *
 * One thread owns all of it. Lists are linked, so that pointers stay valid while members come and
 * go. A lease is held by exactly one place: by the book (lost ones) or by one worker_seat.
 *
 * Which file may call which is drawn in ../README.md; `tests/style/circles` holds the files to it.
 */
#ifndef TESSERA_PREPD_SERVE_CORE_STATE_DISPATCH_STATE_H
#define TESSERA_PREPD_SERVE_CORE_STATE_DISPATCH_STATE_H

#include <sys/types.h>

#include "common/base/arena.h"
#include "common/conf/conf.h"
#include "prepd/dataset/dataset.h"
#include "prepd/agreed/fingerprints.h"
#include "prepd/plan/index.h"
#include "prepd/plan/plan.h"
#include "prepd/sample/clip.h"
#include "prepd/serve/core/state/accounts.h"
#include "prepd/serve/core/state/dispatch.h"
#include "prepd/serve/core/state/hello.h"
#include "prepd/serve/core/state/lease.h"
#include "prepd/serve/core/state/predecessors.h"
#include "prepd/agreed/stage_times.h"
#include "proto/row/bad_samples.h"
#include "proto/row/frame.h"
#include "proto/wire/wire.h"
#include "prepd/serve/core/state/outside.h"

/* An index that is being built by leases: images first, then texts (index_build.c). */
typedef struct index_build {
    source *src;
    bool active;
    int64_t next_image, next_sample; /* the first of each that is not leased yet */
    int64_t left;                    /* records still to come */
    int64_t images_left; /* those of images; texts come after them, which need the times of clips */
    int64_t started_ns;
    predecessors *before; /* of the samples that were leased; NULL if the index needs none */
} index_build;

/* The plan that all consumers of one kind of stream share (sections.c). It is kept as long as the
 * source. */
typedef struct shared_plan {
    plan *plan; /* NULL until a consumer wants it */
    int walkers;
    bool worked;        /* in this turn of the loop */
    int64_t spent_ns;   /* CPU time of the turns in which it was worked on */
    status_note failed; /* why it cannot be made, which those who wait are told; ST_OK if it can */
} shared_plan;

/* A data section: "train" (data.*) or "eval" (eval.* over data.*). It is opened when it is first
 * wanted, or at the start for train. */
struct source {
    dispatch *of;
    const char *name;
    conf options; /* the options as resolved for this section */
    bool wanted;  /* the options are resolved, and the data set is being opened */
    bool opened;  /* the data set is open; the index is there or is being built */
    bool ready;   /* the index is complete */
    dataset *data;
    data_index *index;
    clip_limits clips;
    char *index_path;          /* heap; "" where there is no cache folder */
    const char *waits_for;     /* the prepd that builds the index for which this section waits, or
                                  NULL; the shell sets it */
    fingerprints fingerprints; /* of the decoders and tokenizer that make its rows; fixed from the
                                  first WELCOME on */
    hash128 index_key;
    hash128 model_digest;
    char *stream_json; /* heap; conf_stream_json of options */
    index_build build;
    bad_samples bad;     /* its quarantine: what this daemon's workers found bad, with causes */
    bool near_full;      /* the user was told that it is nearly full */
    bad_samples damaged; /* pictures that decoded with a warning; here an id is an image's */
    shared_plan plans[PLAN_KINDS];
    void *opening; /* the shell's: what opens the files, and its lock on the index; or NULL */
};

/* A row that was made, and by whom. */
typedef struct made_row {
    uint64_t row;
    uint64_t by;       /* worker_seat.number */
    uint64_t account;  /* account.number of that worker's key; 0: a decider */
    uint64_t bad_mark; /* which of its documents were blank */
    hash128 digest;
    int64_t bytes;
} made_row;

/* Bad samples that consumers of one key and run know of (known_lists.c).
 * It takes 8 bytes a sample. */
typedef struct known_list {
    char key[WIRE_KEY_TEXT];
    char run[HELLO_NAME_BYTES + 1];
    char stream[8];
    const source *src;
    bad_samples bad; /* ids alone */
    int users;       /* consumers that share it */
    bool warned;     /* the user was told that it is nearly full */
    struct known_list *next;
} known_list;

/* A row on its way to a consumer: leased, or made and waiting for its turn. */
typedef struct slot {
    uint64_t row;
    int64_t reserved;           /* bytes of credit */
    int64_t n_samples, n_blank; /* n_blank of them are in this daemon's quarantine */
    wire_msg *msg;              /* NULL until a worker has made the row */
    made_row made;
} slot;

/* A row that a consumer refused, to be made again when it comes back for it (doubts.c). */
typedef struct refusal {
    made_row made;
    const source *section; /* NULL: a free place */
    plan_kind kind;
    int rank, ranks;  /* of the consumer */
    uint64_t account; /* account.number of its key */
    int64_t told_ns;
} refusal;
enum { MAX_REFUSALS = 64 };

/* More peers than any cluster has. A broken client that greets for ever meets this limit. */
enum { MAX_SESSIONS = 4096, MAX_SEATS = 65536 };

/* The most rows of one consumer between lease and delivery, which bounds how far rows can be made
 * out of order. */
enum { SESSION_SLOTS = 1024 };

/* A consumer: one peer's walk over the rows of one stream that its rank is owed. */
typedef struct consumer_seat {
    wire_peer peer;
    account *of;
    source *src;
    plan *plan;      /* the source's; NULL until the index is ready */
    row_range *from; /* where its cursor says that its epoch begins; NULL: the whole stream */
    plan_kind kind;
    known_list *known;    /* bad samples that it and its like have named; NULL: none */
    int64_t last_known;   /* the highest that it has named itself */
    int64_t cursor_bytes; /* of `cursor`, if it is long */
    char stream[8];       /* "train", "eval" or "sample" */
    int rank, ranks;
    char run[HELLO_NAME_BYTES + 1]; /* its run, and its own name, as it said; "" if it did not */
    char self[HELLO_NAME_BYTES + 1];
    char *cursor;         /* heap; of its HELLO, until the index is ready; NULL: none */
    bool placed;          /* next_row and what its cursor brought are known */
    bool welcomed, ended; /* ended: its last row is leased */
    bool end_sent;        /* END was sent, or the consumer is no longer there to take it */
    bool rows_later;      /* WELCOME need not wait until all epochs are planned */
    bool report;          /* a command that asks for a report of the plan and for no rows */
    bool press;           /* its link is slower than the workers, so images are compressed */
    uint64_t next_row;    /* the first row that has not been looked at */
    uint64_t step;        /* the step that rank_of describes; UINT64_MAX: none yet */
    int *rank_of;         /* [training.global_batch_size] which rank gets each row of that step */
    int64_t credit;       /* bytes that may still be reserved */
    int64_t reserved;     /* bytes that its slots have reserved */
    int64_t unreturned;   /* bytes sent and not yet given back */
    int64_t need;         /* bytes that its next row reserves; 0 if not known yet */
    slot slots[SESSION_SLOTS]; /* a ring: n_slots of them from first_slot on, in row order */
    int first_slot, n_slots;
    made_row *made; /* [n_made] the rows that were sent last, in their order; heap (consumers.c) */
    int64_t n_made, made_capacity;
    uint64_t rows_sent;
    uint64_t row_at_tick;        /* next_row when the rates were last measured */
    double rows_per_s;           /* pace of next_row: rows of the stream, those of all ranks */
    int64_t started_ns, said_ns; /* said_ns: when it last heard from the daemon */
    int64_t away_ns;             /* since when it cannot be reached; 0: it can */
    struct consumer_seat *next;
} consumer_seat;

/* What is known of the link to a remote worker. It starts as zeros. */
typedef struct compression_link {
    double rate; /* bytes per second, averaged over rows; 0: nothing is known yet */
} compression_link;

/* A worker that has joined. */
typedef struct worker_seat {
    wire_peer peer;
    uint64_t number; /* from 1; never given twice */
    pid_t pid;
    char host[64];             /* as it calls itself */
    bool local;                /* a child of this process, by its ticket */
    bool decider;              /* local, or of a key with the role trusted */
    account *of;               /* of its key; NULL for a local one */
    fingerprints fingerprints; /* as it said */
    char build[HASH_TEXT];     /* likewise, cut to the length of a build id */
    bool other_build;          /* it is not the daemon's */
    bool has_terms;            /* it was sent TERMS and may load what they name */
    bool proved;               /* all its fingerprints are this daemon's: it may have work */
    bool fresh;                /* it has done nothing yet */
    bool begun;                /* it has reported an item or an answer, so its start went well */
    bool ship;                 /* it has no data root: files are sent with its leases */
    int64_t shipped;           /* bytes of such files under way to it */
    bool unreachable;          /* its connection was found to be gone */
    lease *work;
    lease *ahead;     /* its next lease, sent before it has answered for work; NULL if none */
    bool last_item;   /* it has begun the last item of work */
    bool ended;       /* its process has ended; what it said before may still come */
    bool late;        /* it took too long, and all that it still says comes too late */
    bool excused;     /* new terms make it start anew */
    bool owes;        /* its lease was given to another, and it has not answered yet */
    bool passed;      /* in this turn there is nothing for it */
    bool unbegun;     /* it has said nothing about work, so if it leaves, work was not begun */
    int64_t since_ns; /* when work was given, or its last item was reported in order */
    int64_t leased_ns, made_ns; /* when the row was leased; how long making it took, 0 if unknown */
    compression_link link;      /* of a remote worker */
    int64_t joined_ns, heard_ns, told_ns;
    int64_t leases_done, missing_files;
    struct worker_seat *next;
} worker_seat;

/* A remote process that starts workers again (seats.c). */
typedef struct supervisor_seat {
    wire_peer peer;
    int64_t heard_ns;
    struct supervisor_seat *next;
} supervisor_seat;

/* A local worker process (local.c). */
typedef struct local_child {
    pid_t pid; /* 0: a free place */
    int64_t started_ns;
    bool joined;
    char ticket[TICKET_TEXT]; /* that it was given */
    bool begun;               /* as in worker_seat */
    bool leaving;             /* it was told to go, because the pool shrinks or the daemon stops */
    bool ended; /* the process is gone, as `end` says; its last messages are awaited until */
    int64_t bury_ns;
    child_end end;
} local_child;

enum { MAX_LOCAL = 1024 };

typedef struct local_pool {
    int target;        /* as many as options or operator ask for */
    int needed;        /* so many, at least, to decide */
    int64_t needed_ns; /* when they were last needed */
    local_child child[MAX_LOCAL];
    int n_places;        /* the places of `child` from this one on are free */
    int deaths_at_start; /* in a row: workers that died before they began any work */
    int killed_at_start; /* in a row: the same, killed from outside */
    bool any_begun;
    status_note why;       /* what the last one that could not begin said; ST_OK: nothing */
    int64_t not_before_ns; /* no worker is started before this */
    int64_t unstarted_ns;  /* since when the system starts none that is to be; 0: it does */
    int64_t killed_ns;     /* since when all are killed before they begin; 0: they are not */
    int64_t respawned;     /* workers that were replaced, for status */
    int64_t leave_by_ns;   /* when children that were told to leave are killed */
} local_pool;

typedef struct serve_counts {
    uint64_t rows, samples, bytes;   /* sent */
    uint64_t stream_rows[N_STREAMS]; /* rows sent of each stream (STREAM_NAMES) */
    uint64_t pressed;                /* row leases that asked for compressed images */
    uint64_t quarantined;            /* samples, in this run */
    uint64_t blank;        /* quarantined samples sent; one counts again in every row that has it */
    uint64_t cached[2];    /* pictures found in the cache, and pictures not found there */
    uint64_t shipped;      /* bytes of files sent with leases */
    uint64_t leases_ahead; /* leases sent to workers that were still at the one before */
    uint64_t leases_lost, crashes, timeouts, outside, breaches;
    uint64_t checked, unchecked; /* rows made alike by two processes; rows that were drawn and sent
                                    unchecked, since there was no decider */
    uint64_t contradicted;       /* words of keys that deciders found false */
    uint64_t taken;              /* leases taken from slow workers by idle deciders */
    uint64_t joins_deferred;     /* JOINs that were told to wait */
    int64_t stage_ns[N_STAGES];  /* of all workers */
    int64_t longest_turn_ns; /* the longest turn of the loop, during which no peer is answered */
    uint64_t rows_at_tick;
    double rows_per_s, samples_per_s;
    uint64_t samples_at_tick;
    int64_t tick_ns;
} serve_counts;

/* The process that makes this daemon's fingerprints (fingerprinting.c). */
typedef struct print_maker {
    pid_t pid; /* 0: there is none */
    int64_t started_ns;
    int64_t not_before_ns; /* when to start it again after a failure */
    bool asked[N_PRINTS];  /* what it is to make */
    int deaths;            /* in a row, before it had told all of it */
} print_maker;

/* What an operator must look into. */
typedef struct alarm_note {
    char why[320];
    int64_t at_ns;
    uint64_t count;
} alarm_note;

struct dispatch {
    outside outside;
    int64_t now_ns; /* when the event that is being handled came; never falls */
    conf *options;
    daemon_place place;
    source train, eval;
    lease_book book;
    consumer_seat *consumer_seats;
    known_list *known; /* those of all consumers */
    worker_seat *seats;
    supervisor_seat *supervisors;
    int n_consumers, n_seats, n_supervisors;
    uint64_t seats_seen; /* seats ever given; the number of the last one */
    local_pool local;
    uint32_t turn;       /* round robin over what produces leases */
    int64_t pieces_left; /* of planning, in this turn of the loop */
    bool plans_wait;     /* a plan has more to do, so the next turn comes at once */
    int64_t retired_ns;  /* when a worker was last asked to start anew; 0: one has come since */
    fingerprints fingerprints; /* this daemon's own */
    print_maker maker;
    bool videos; /* a section that has been opened has videos */
    char *terms; /* heap; TERMS as JSON */
    bool stopping, stop_now, draining;
    bool signalled;      /* a signal has asked for the end; the next one sets stop_now */
    int64_t drain_ns;    /* when draining ends whatever is in work; 0: only when all is done */
    int64_t row_ns;      /* about how long deciders take for a row */
    int64_t answered_ns; /* when a lease last came back or made progress, or the first went out */
    status outcome;      /* of the run */
    status_note cause;
    arena scratch; /* for one message at a time */
    serve_counts counts;
    peer_limits peer_limits;
    accounts accounts;
    alarm_note alarm;
    refusal refusals[MAX_REFUSALS]; /* a ring */
    unsigned next_refusal;
    int64_t started_ns, ticked_ns;
};

/* Writes a line to the log (outside.h). */
#define core_warn(state, ...)  outside_warn(&(state)->outside, __VA_ARGS__)
#define core_info(state, ...)  outside_info(&(state)->outside, __VA_ARGS__)
#define core_debug(state, ...) outside_debug(&(state)->outside, __VA_ARGS__)

/* sections.c */
/* Ends the run with this status and the thread's note. The first failure counts. */
void dispatch_fail(dispatch *state, status st);
/* Has a section opened. Nothing if that was done before. */
WARN_UNUSED status section_want(dispatch *state, source *section);
/* Adds the weights of a mixture to the digest of its index. They are part of the stream's identity,
 * but not of the index file. */
WARN_UNUSED status section_mix(source *section);

void planning_turn(dispatch *state); /* begins a new turn's share of planning */
/* Spends what pieces are left on the consumer's plan, as far as `row`. *out_ready as that of
 * plan_prepare. */
WARN_UNUSED status planning_row(dispatch *state, consumer_seat *consumer, uint64_t row,
                                bool *out_ready);
/* Sets consumer->plan; the first who wants the plan begins it. */
WARN_UNUSED status planning_want(consumer_seat *consumer);
/* Plans as far as the consumer's WELCOME needs. */
WARN_UNUSED status planning_ready(dispatch *state, consumer_seat *consumer, bool *out_ready);
void planning_leave(consumer_seat *consumer);

/* fingerprint_check.c */
/* Whether the fingerprint is made with the video decoder, so only if the data may hold videos. */
bool print_needs_videos(print_kind kind);
/* Whether this fingerprint is needed and not known yet. */
bool prints_are_wanted(const dispatch *state, print_kind kind);
/* Whether all fingerprints that streams of the opened sections carry are known. */
bool fingerprints_are_known(const dispatch *state);
void fingerprints_of_source(const dispatch *state, source *section);
/* The first fingerprint in which the worker differs from this daemon, or that its build lacks;
 * N_PRINTS if there is none. A worker says all of them together with that of its tokenizer. */
print_kind fingerprints_of_worker(const dispatch *state, const worker_seat *worker);
/* The refusal of a worker whose fingerprint of `kind` differs: MISMATCH. */
WARN_UNUSED status fingerprints_refuse_worker(const fingerprints *theirs, const fingerprints *ours,
                                              print_kind kind, int64_t pid, const char *host,
                                              const char *name);
/* Checks that a stream that continues was made by what has this daemon's fingerprints. A cursor
 * without fingerprints passes. */
WARN_UNUSED status fingerprints_check_cursor(const source *section, const json_value *cursor,
                                             const char *name);

#endif
