/* dispatch_state.h: what the dispatcher knows, shared by the files of serve/ and nobody else.
 *
 * One thread owns all of it. Lists are linked, so that pointers stay valid while members come and
 * go. Who may hold a lease: the book (lost ones) or one worker_seat; nobody else. */
#ifndef TESSERA_PREPD_SERVE_DISPATCH_STATE_H
#define TESSERA_PREPD_SERVE_DISPATCH_STATE_H

#include <sys/types.h>

#include "common/base/arena.h"
#include "common/conf/conf.h"
#include "prepd/dataset/cache_lock.h"
#include "prepd/dataset/dataset.h"
#include "prepd/agreed/fingerprints.h"
#include "prepd/plan/index.h"
#include "prepd/plan/plan.h"
#include "prepd/sample/clip.h"
#include "prepd/serve/breaches.h"
#include "prepd/serve/http.h"
#include "prepd/serve/io_threads.h"
#include "prepd/serve/lease.h"
#include "prepd/serve/peer_limits.h"
#include "prepd/serve/compression_choice.h"
#include "prepd/serve/quarantine.h"
#include "prepd/agreed/stage_times.h"
#include "proto/frame.h"
#include "proto/wire.h"

typedef struct dispatch dispatch;
typedef struct source source;

/* Builds an index by leases: first images, then texts (index_build.c). */
typedef struct index_build {
    source *src;
    bool active;
    int64_t next_image, next_sample; /* not yet leased */
    int64_t left;                    /* records still to come */
    int64_t images_left; /* of them, of images: texts come after, for the times of clips */
    int64_t started_ns, told_ns;
} index_build;

/* The plan that all consumers of a kind of stream share (planning.c); kept as long as the source.
 */
typedef struct shared_plan {
    plan *plan; /* NULL until a consumer wants it */
    int walkers;
    int64_t spent_ns;   /* on making it */
    status_note failed; /* why it cannot be made, code ST_OK: it can; those waiting are told */
} shared_plan;

typedef struct opening opening; /* of source.c */

/* A data section: "train" (data.*) or "eval" (eval.* over data.*), opened when first wanted. */
struct source {
    const char *name;
    conf c;      /* resolved for this section */
    bool wanted; /* options are resolved, the data set is being opened */
    bool opened; /* data and index are there or being built */
    bool ready;  /* index sealed */
    dataset *data;
    data_index *index;
    clip_limits clips;
    char *index_path;          /* heap; where the cache lies; "": nowhere */
    cache_lock lock;           /* of it, while it is built here */
    fingerprints fingerprints; /* what its rows are made by; from the first WELCOME on */
    hash128 index_key;
    hash128 model_digest;
    char *stream_json; /* conf_stream_json of c; heap */
    index_build build;
    quarantine bad;       /* found by this daemon's workers */
    quarantine damaged;   /* by picture: decoded with these warnings */
    shared_plan plans[2]; /* by plan_kind */
    opening *opening;     /* under way in a thread of its own; NULL */
};

/* A row on its way to a consumer. */
typedef struct slot {
    uint64_t row;
    int64_t reserved;        /* bytes of credit */
    int64_t n_docs, n_blank; /* of them found bad by this daemon */
    wire_msg *msg;           /* NULL until a worker gave it */
} slot;

/* More peers than any cluster has: a broken client that greets for ever meets this wall. */
enum { MAX_SESSIONS = 4096, MAX_SEATS = 65536 };

/* Most rows between lease and delivery of one consumer: bounds the reorder window. */
enum { SESSION_SLOTS = 1024 };

typedef struct consumer_seat {
    wire_peer peer;
    source *src;
    plan *plan;      /* the source's; NULL until the index is ready */
    row_range *from; /* of it, where a cursor told where its epoch begins; NULL: all */
    plan_kind kind;
    quarantine bad; /* what its rows are made under: its cursor's list and what was found here */
    int64_t told_bytes; /* of its HELLO, later of the list that its cursor brought */
    char stream[8];     /* "train", "eval", "sample" */
    int rank, ranks;
    char *hello;          /* JSON kept until the index is ready; heap */
    bool placed;          /* next_row is known, and what its cursor brought */
    bool welcomed, ended; /* ended: the last row is leased */
    bool end_sent;        /* END went out, or nobody is there to take it */
    bool rows_later;      /* WELCOME need not wait until all epochs are planned */
    bool report;          /* a command that asks for a report of the plan, and no rows */
    bool press;           /* its link is the slower part */
    uint64_t next_row;    /* first row not yet looked at */
    uint64_t step;        /* step that rank_of describes; UINT64_MAX none */
    int *rank_of;         /* [G] */
    int64_t credit;       /* bytes that may still be reserved */
    int64_t reserved;     /* bytes of the slots */
    int64_t unreturned;   /* bytes sent and not yet given back */
    int64_t need;         /* bytes the next row reserves, 0 = not yet known */
    slot slots[SESSION_SLOTS];
    int first_slot, n_slots;
    uint64_t rows_sent;
    uint64_t row_at_tick;        /* next_row when the rates were last measured */
    double rows_per_s;           /* of the stream, all ranks' rows: next_row's pace */
    int64_t started_ns, said_ns; /* said_ns: when it last heard from us */
    struct consumer_seat *next;
} consumer_seat;

/* A worker that joined. */
typedef struct worker_seat {
    wire_peer peer;
    uint64_t number; /* from 1, never given twice */
    pid_t pid;
    char host[64];             /* as it calls itself */
    char from[WIRE_HOST_TEXT]; /* whose address its connection has; "" over ipc */
    bool local;                /* a child of ours */
    fingerprints fingerprints; /* as it said */
    bool has_terms;            /* it may load what they name */
    bool proved;               /* all of them are ours: it may have work */
    bool fresh;                /* has done nothing yet */
    bool begun;                /* has reported an item or an answer: its start went well */
    bool ship;                 /* has no data root: files come with its leases */
    int64_t shipped;           /* bytes of them under way */
    char supervisor[24];       /* what starts it again elsewhere and says how it died; "" none */
    int64_t lost_ns; /* its connection is gone: the supervisor is given a moment to say why; 0 no */
    lease *work;
    lease *ahead;     /* what it does next, sent before it has answered for work; NULL */
    bool last_item;   /* it has begun the last one of work */
    bool unbegun;     /* nothing has been heard of work: a worker that leaves has not begun it */
    int64_t since_ns; /* of the lease, or of its last item that was reported in order */
    int64_t leased_ns, made_ns; /* of the row in work: making it took made_ns; 0: not yet told */
    compression_link link;      /* of one elsewhere */
    int64_t joined_ns, heard_ns, told_ns;
    int64_t leases_done, missing_files;
    struct worker_seat *next;
} worker_seat;

/* A process elsewhere that starts workers again (supervisors.c). */
typedef struct supervisor_seat {
    wire_peer peer;
    int64_t heard_ns;
    struct supervisor_seat *next;
} supervisor_seat;

/* Local worker processes (local.c). */
typedef struct local_child {
    pid_t pid; /* 0 = empty place */
    int64_t started_ns;
    bool joined;
    bool begun;   /* see worker_seat */
    bool leaving; /* told to go: scaled down or stopping */
} local_child;

enum { MAX_LOCAL = 1024 };

typedef struct local_pool {
    char *endpoint; /* of workers; heap */
    char self[STATUS_PATH_MAX];
    int target;
    local_child child[MAX_LOCAL];
    int deaths_at_start; /* in a row: died before they began any work */
    int killed_at_start; /* the same, by somebody outside */
    bool any_begun;
    status_note why; /* what the last one said that could not begin; code ST_OK: nothing */
    int64_t not_before_ns;
    int64_t respawned; /* deaths made good, for status */
} local_pool;

typedef struct serve_counts {
    uint64_t rows, samples, empty_rows, bytes;
    uint64_t pressed;      /* row leases that asked for compressed images */
    uint64_t quarantined;  /* in this run */
    uint64_t blank;        /* of samples, those: one again for every row that holds it */
    uint64_t cached[2];    /* pictures found in the cache, and not */
    uint64_t shipped;      /* bytes of files sent with leases */
    uint64_t leases_ahead; /* sent to workers that were still at the one before */
    uint64_t leases_lost, crashes, timeouts, outside, breaches;
    int64_t stage_ns[N_STAGES]; /* of all workers */
    int64_t longest_turn_ns;    /* of the loop: nobody was answered meanwhile */
    uint64_t rows_at_tick;
    double rows_per_s, samples_per_s;
    uint64_t samples_at_tick;
    int64_t tick_ns;
} serve_counts;

/* The process that makes fingerprints (fingerprint_maker.c). */
typedef struct print_maker {
    pid_t pid; /* 0: none */
    int fd;    /* what it says */
    char text[4096];
    size_t n;
    int64_t started_ns;
    int64_t not_before_ns; /* started again, where it could not be */
    int deaths;            /* in a row that told nothing */
} print_maker;

struct dispatch {
    conf *c;
    char *const *args; /* [n_args] it was resolved from; SIGHUP reads them again */
    int n_args;
    int reloaded;            /* options the last reload changed */
    bool quiet, for_command; /* dispatch_run */
    wire *net;
    io_threads io;
    wire_socket *consumers, *workers, *control;
    char *workers_endpoint, *control_endpoint;
    int signal_fd;
    http *metrics; /* NULL: metrics.listen is empty */
    source train, eval;
    lease_book book;
    consumer_seat *consumer_seats;
    worker_seat *seats;
    supervisor_seat *supervisors;
    int n_consumers, n_seats, n_supervisors;
    uint64_t seats_seen; /* ever: numbers of seats */
    local_pool local;
    uint32_t turn;             /* round robin over producers */
    int64_t slice_end_ns;      /* of planning in this turn of the loop */
    bool plans_wait;           /* for the next one */
    int64_t retired_ns;        /* when a worker was last asked to start anew */
    const char *build;         /* prepd_build */
    fingerprints fingerprints; /* ours */
    print_maker maker;
    bool videos; /* in the data of an opened section */
    char *terms; /* TERMS JSON; heap */
    char host[64];
    bool stopping, stop_now, draining, reload;
    bool signalled;      /* once; the next one is stop_now */
    int64_t drain_ns;    /* when draining ends whatever is in work; 0 = when all is done */
    int64_t answered_ns; /* when a lease last came back or went on, or the first went out */
    status outcome;      /* of the run */
    status_note cause;
    arena scratch; /* one message at a time */
    serve_counts counts;
    peer_limits peer_limits;
    breaches breaches;
    int64_t started_ns, ticked_ns, watchdog_ns;
};

/* state.c */
void dispatch_fail(dispatch *d, status st); /* ends the run with the thread's note */

/* signals.c */
void dispatch_signals(dispatch *d); /* reads the signalfd: sets stopping, stop_now */

/* terms.c */
WARN_UNUSED status dispatch_make_terms(dispatch *d); /* from the options as they are now */
/* Makes them and tells the workers: those that have others start anew. */
WARN_UNUSED status dispatch_new_terms(dispatch *d);
WARN_UNUSED status seat_send_terms(dispatch *d, const wire_peer *to);

/* source_index.c */
/* What an index record depends on besides the data set; a change of these builds it anew. */
WARN_UNUSED status source_index_key(const source *s, hash128 *out);
/* s->index from its file. NO_INPUT: there is none, or it does not fit the data. */
WARN_UNUSED status source_load_index(source *s);
WARN_UNUSED status source_index_done(source *s); /* all records are there: seals and keeps it */

/* source.c */
/* Opens it and loads the index, in a thread of its own. */
WARN_UNUSED status source_want(dispatch *d, source *s);
/* Whose index it waits for: another prepd builds it. NULL: it does not. */
const char *source_waits_for(const source *s);
/* Takes over what that thread opened, once it is done, and begins the index where there is none.
 * After a failure it is the caller's to tell those who wait for it, then to call source_done. */
WARN_UNUSED status source_advance(dispatch *d, source *s);
void source_done(source *s);

/* planning.c */
void planning_turn(dispatch *d); /* a new slice */
/* What remains of the slice goes into the plan; *out_ready as of plan_prepare. */
WARN_UNUSED status planning_row(dispatch *d, consumer_seat *s, uint64_t row, bool *out_ready);
/* s->plan, begun by the first who wants it. */
WARN_UNUSED status planning_want(consumer_seat *s);
WARN_UNUSED status planning_ready(dispatch *d, consumer_seat *s, bool *out_ready); /* for WELCOME */
void planning_leave(consumer_seat *s);

/* index_build.c */
enum { INDEX_LEASE_ITEMS = 128 }; /* most of a lease; keeps one of texts near 64 KiB of JSON */
WARN_UNUSED status index_build_start(source *s);
WARN_UNUSED status index_build_produce(dispatch *d, source *s, lease **out); /* NULL: nothing */
WARN_UNUSED status index_build_poison(dispatch *d, lease *l, int64_t item, const char *cause);
/* Seals the index if no record is left to come. */
WARN_UNUSED status index_build_finish(dispatch *d, source *s);
void index_build_progress(dispatch *d, source *s, bool last);

/* index_records.c */
/* What worker w told. ST_PROTOCOL is the worker's fault, any other failure is not. */
WARN_UNUSED status index_build_take(dispatch *d, lease *l, const json_value *records,
                                    const worker_seat *w, const char *from);

/* claims.c: what workers elsewhere tell of the index counts once another process says the same. */
typedef struct claim_asker {
    const dispatch *d;
    const worker_seat *w;
} claim_asker;
bool claim_may_take(const void *asker, const lease *l); /* a lease_filter */
/* *out_settled: which of the records of the lease's items (k-th: facts[k]) count now. The others
 * are leased again. ST_PROTOCOL: w contradicts itself. */
WARN_UNUSED status claims_settle(dispatch *d, const lease *l, const int64_t *item,
                                 const uint64_t *facts, int64_t n, const worker_seat *w,
                                 const char *from, bool *out_settled);
void claims_want_local(dispatch *d); /* where two differ, and no local worker could decide */

/* greet.c */
WARN_UNUSED status consumer_hello(dispatch *d, const wire_peer *from, wire_msg *m,
                                  const json_value *v, const char *name);
void consumers_greet(dispatch *d);                                /* WELCOME to those that waited */
void consumers_refuse(dispatch *d, const source *src, status st); /* it cannot be opened */

/* consumers.c */
typedef struct stream_place {
    int64_t epoch;       /* from 0, as rows of epoch 0 count it: others differ by a few rows */
    double share;        /* of the epoch, 0 to 1 */
    double seconds_left; /* in the epoch at the present pace; -1 unknown */
} stream_place;
stream_place consumer_place(const consumer_seat *s); /* of a welcomed one */
int64_t
consumer_row_bytes(const conf *c); /* that a row of such a stream can reserve at most, about */
consumer_seat *consumer_find(dispatch *d, const wire_peer *peer); /* NULL if none */
void consumer_free(consumer_seat *s);
WARN_UNUSED status consumer_produce(dispatch *d, consumer_seat *s, lease **out); /* NULL: nothing */
void consumers_still_here(dispatch *d, int64_t now);
void consumers_deliver(dispatch *d); /* rows that a consumer could not take before */
void consumer_row(dispatch *d, consumer_seat *s, lease *l, wire_msg *m);
void consumer_close(dispatch *d, consumer_seat *s, const char *error); /* error NULL: silently */

/* consumer_messages.c */
void consumer_message(dispatch *d, const wire_peer *from, wire_msg *m);

/* seats.c */
worker_seat *seat_find(dispatch *d, const wire_peer *peer); /* NULL if none */
void seat_gone(dispatch *d, worker_seat *w, loss how, const char *what);
worker_seat *seat_of_pid(dispatch *d, pid_t pid);
void seats_quarantine(dispatch *d, source *s, int64_t id, const char *cause);
/* Its worker has ended since it sent what was just read, which breaks nothing. What it sent after
 * that may say why, or its parent does: the seat stays until then, or as long as that may take. */
void seat_unreachable(worker_seat *w);
void seat_retire(dispatch *d, worker_seat *w, bool again); /* one that holds no lease */
void seat_give_back(dispatch *d, lease *l);                /* one that was not begun; NULL: none */
source *lease_source(const lease *l);

/* joining.c */
/* JOIN, a first or a further one. */
WARN_UNUSED status seat_join(dispatch *d, const wire_peer *from, const char *name,
                             const json_value *v);
/* Compares what it said with what is known; TERMS once its pictures are ours, work once all is.
 * ST_MISMATCH: the seat is gone, and its worker is to be told. */
WARN_UNUSED status seat_prove(dispatch *d, worker_seat *w, const char *name);

/* worker_messages.c */
WARN_UNUSED status seats_read(dispatch *d); /* all that has come from workers */
void seat_message(dispatch *d, const wire_peer *from, wire_msg *m);

/* worker_answers.c */
/* Each ends what the worker has in work, unless it is late. */
WARN_UNUSED status answer_row(dispatch *d, worker_seat *w, const frame *head, wire_msg *m,
                              const char *name);
WARN_UNUSED status answer_records(dispatch *d, worker_seat *w, const frame *head,
                                  const json_value *v, const char *name);
WARN_UNUSED status answer_failed(dispatch *d, worker_seat *w, const frame *head,
                                 const json_value *v, const char *name);
/* It is on another item, or tells where its time went. */
WARN_UNUSED status answer_on(dispatch *d, worker_seat *w, const frame *head, const json_value *v,
                             const char *name);

/* damage.c */
/* "damaged" of what a worker tells of the row that it has made. */
WARN_UNUSED status damage_heard(dispatch *d, const lease *l, const json_value *list,
                                const char *name);
/* [{"file":F,"warning":W}...] of at most `most` from this one on; returns the next one. */
int64_t damage_put(const source *s, int64_t from, int64_t most, json_writer *w);

/* fingerprint_maker.c */
WARN_UNUSED status
fingerprint_process_start(dispatch *d);     /* nothing if none is missing, or one is at it */
void fingerprint_process_read(dispatch *d); /* reads what it said; starts it again if it must */
void fingerprint_process_stop(dispatch *d);

/* fingerprint_check.c */
bool prints_are_wanted(const dispatch *d, print_kind kind); /* needed and not known */
bool fingerprints_are_known(const dispatch *d);             /* all that the opened sections need */
void fingerprints_of_source(const dispatch *d, source *s);
WARN_UNUSED status fingerprints_refuse_worker(const fingerprints *theirs, const fingerprints *ours,
                                              print_kind kind, int64_t pid, const char *host,
                                              const char *name);
/* For a stream that goes on: its rows were made by what makes ours, or prepd.mixed_resume allows
 * another. A cursor from before there were fingerprints says nothing. */
WARN_UNUSED status fingerprints_check_cursor(const dispatch *d, const source *s,
                                             const json_value *cursor, const char *name);

/* supervisors.c */
WARN_UNUSED status supervisor_heard(dispatch *d, const wire_peer *from, const char *name);
void supervisors_tick(dispatch *d, int64_t now);
void supervisors_leave(dispatch *d, bool tell); /* forgets all; told to go for good, or not */

/* leasing.c */
void seats_check_time(dispatch *d, int64_t now);
void seats_schedule(dispatch *d);

/* payload.c */
/* ship: takes the bytes of the lease's files; NULL: the worker finds them itself. */
WARN_UNUSED status payload_lease(dispatch *d, lease *l, bool press, wire_msg *ship, char **out,
                                 size_t *out_size);
WARN_UNUSED status payload_cursor(consumer_seat *s, const planned_row *r, uint64_t next,
                                  char **out);

/* local.c */
WARN_UNUSED status local_start(dispatch *d);
void local_tick(dispatch *d, int64_t now);
int local_wanted(const conf *c); /* prepd.workers, or one per CPU */
void local_scale(dispatch *d, int target);
void local_joined(dispatch *d, pid_t pid);
void local_begun(dispatch *d, pid_t pid);
void local_said_why(dispatch *d, pid_t pid); /* the thread's note is why it cannot begin */
bool local_is_child(const dispatch *d, pid_t pid);
void local_kill(dispatch *d, pid_t pid); /* it does not keep its own time limit */
bool local_is_leaving(const dispatch *d, pid_t pid);
int local_alive(const dispatch *d);
local_child *local_child_of(const dispatch *d, pid_t pid); /* NULL: not one of ours */
/* One ended before it began any work: the pool waits, or gives up. */
void local_failed_at_start(dispatch *d, const char *what);

/* reaping.c */
void local_reap(dispatch *d);
void local_stop(dispatch *d); /* BYE is sent; waits, then kills */

/* operator_commands.c */
void control_message(dispatch *d, const wire_peer *from, wire_msg *m);

/* metrics.c */
const char *metrics_unhealthy(const dispatch *d, int64_t now); /* why, or NULL */
const char *metrics_unready(const dispatch *d);
int metrics_answer(void *user, const char *path, FILE *out); /* an http_handler */

/* reload.c */
void dispatch_reload(dispatch *d);

/* dispatch.c */
/* Tells the service manager that the loop turns and work comes back, as often as it wants to hear
 * it. */
void dispatch_watchdog(dispatch *d, int64_t now);

#endif
