/* dispatch_state.h: what the dispatcher knows, and the functions by which the files of core/ call
 * each other. The shell (prepd/serve) reads it for status lines and metrics, and calls dispatch.h.
 *
 * One thread owns all of it. Lists are linked, so that pointers stay valid while members come and
 * go. A lease is held by exactly one place: by the book (lost ones) or by one worker_seat.
 *
 * Which file may call which is drawn in ../README.md; `tests/style/circles` holds the files to it.
 */
#ifndef TESSERA_PREPD_SERVE_CORE_DISPATCH_STATE_H
#define TESSERA_PREPD_SERVE_CORE_DISPATCH_STATE_H

#include <sys/types.h>

#include "common/base/arena.h"
#include "common/conf/conf.h"
#include "prepd/dataset/dataset.h"
#include "prepd/agreed/fingerprints.h"
#include "prepd/plan/index.h"
#include "prepd/plan/plan.h"
#include "prepd/sample/clip.h"
#include "prepd/serve/core/accounts.h"
#include "prepd/serve/core/dispatch.h"
#include "prepd/serve/core/hello.h"
#include "prepd/serve/core/lease.h"
#include "prepd/serve/core/predecessors.h"
#include "prepd/agreed/stage_times.h"
#include "proto/bad_samples.h"
#include "proto/frame.h"
#include "proto/wire.h"
#include "prepd/serve/core/outside.h"

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
    int64_t leased_ns,
        made_ns;           /* when the row was leased; how long making it took, 0 if not told */
    compression_link link; /* of a remote worker */
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
void dispatch_fail(dispatch *dispatch, status st);
/* Has a section opened. Nothing if that was done before. */
WARN_UNUSED status section_want(dispatch *dispatch, source *source);
/* Adds the weights of a mixture to the digest of its index. They are part of the stream's identity,
 * but not of the index file. */
WARN_UNUSED status section_mix(source *source);

void planning_turn(dispatch *dispatch); /* begins a new turn's share of planning */
/* Spends what pieces are left on the consumer's plan, as far as `row`. *out_ready as that of
 * plan_prepare. */
WARN_UNUSED status planning_row(dispatch *dispatch, consumer_seat *consumer, uint64_t row,
                                bool *out_ready);
/* Sets consumer->plan; the first who wants the plan begins it. */
WARN_UNUSED status planning_want(consumer_seat *consumer);
/* Plans as far as the consumer's WELCOME needs. */
WARN_UNUSED status planning_ready(dispatch *dispatch, consumer_seat *consumer, bool *out_ready);
void planning_leave(consumer_seat *consumer);

/* index_build.c */
/* The most items of an index lease, which keeps one of texts near 64 KiB of JSON. */
enum { INDEX_LEASE_ITEMS = 128 };
WARN_UNUSED status index_build_start(source *source);
/* The next lease of the index; *out is NULL if there is nothing to lease now. */
WARN_UNUSED status index_build_produce(dispatch *dispatch, source *source, lease **out);
/* Records that an item of the lease is refused, because it kills its workers. */
WARN_UNUSED status index_build_poison(dispatch *dispatch, lease *lease, int64_t item,
                                      const char *cause);
/* Whether a text that is to be tried alone must wait. It is compared with its predecessor's text,
 * which its worker encodes too; until that one is settled, a death could be either's. */
bool index_build_waits(const lease *lease);
/* Has the text tried first with which the next one is compared, if both are in this lease and its
 * record is not there yet: its worker encodes both, so a death could be either's. */
void index_build_order_trials(lease *lease);
/* Completes the index if no record is left to come. */
WARN_UNUSED status index_build_finish(source *source);

/* index_records.c */
/* Takes the records that a worker sent for a lease, or for its one solo item, which is then done
 * with. PROTOCOL is the worker's fault; any other failure is not. */
WARN_UNUSED status index_build_take(lease *lease, const json_value *records,
                                    const worker_seat *worker, const char *from);

/* known_lists.c */
/* Why the sample is blank in the consumer's rows; NULL if it is not. */
const char *blank_cause(const consumer_seat *consumer, int64_t id);
/* How many samples are blank in them. It reads both lists from end to end. */
int64_t known_count(const consumer_seat *consumer);
/* The longest list that any consumer of this section may come to know. */
int64_t known_most(const dispatch *dispatch, const source *source);
/* Tells the user once if that is nearly as long as a list may be. */
void known_warn(dispatch *dispatch, const source *source, bool *inout_warned);
/* Whether so many more bytes of HELLOs and lists may be kept: else UNAVAILABLE. */
WARN_UNUSED status known_may_keep(const dispatch *dispatch, int64_t bytes, const char *name);
/* Takes the lists of a HELLO and of its cursor (NULL: none). PROTOCOL: they cannot be read. */
WARN_UNUSED status known_take(dispatch *dispatch, consumer_seat *consumer, const json_value *said,
                              const json_value *cursor, const char *name);
/* Refuses a list of other data, now that the index is there. */
WARN_UNUSED status known_check(const consumer_seat *consumer, const char *name);
void known_leave(consumer_seat *consumer);

/* greet.c */
WARN_UNUSED status consumer_hello(dispatch *dispatch, const wire_peer *from, const json_value *said,
                                  const char *name);
/* Sends WELCOME to the consumers whose index and plan have become ready. */
void consumers_greet(dispatch *dispatch);
/* Refuses the consumers that wait for a section that cannot be opened. */
void consumers_refuse(dispatch *dispatch, const source *source, status st);

/* consumers.c */
/* Where in the stream a consumer is. */
typedef struct stream_place {
    int64_t epoch;       /* from 0, in rows of epoch 0; other epochs differ by a few rows */
    double share;        /* of the epoch, 0 to 1 */
    double seconds_left; /* in the epoch at the present pace; -1 if unknown */
} stream_place;
stream_place consumer_place(const consumer_seat *consumer); /* it must have been welcomed */
/* About the most bytes that a row of a stream with these options can reserve. */
int64_t consumer_row_bytes(const conf *options);
consumer_seat *consumer_find(dispatch *dispatch, const wire_peer *peer); /* NULL if there is none */
void consumer_free(consumer_seat *consumer);
/* Removes a consumer, sending it `error` first unless that is NULL. */
void consumer_close(dispatch *dispatch, consumer_seat *consumer, const char *error);
/* The consumer's next row as a lease; *out is NULL if its credit or its plan allow none now. */
WARN_UNUSED status consumer_produce(dispatch *dispatch, consumer_seat *consumer, lease **out,
                                    planned_row *out_row);
void consumers_still_here(dispatch *dispatch, int64_t now);
void consumers_deliver(dispatch *dispatch); /* sends rows that a consumer could not take before */
/* The row of this lease is good. Takes the lease and the message, which has its tag. */
void consumer_take_row(dispatch *dispatch, consumer_seat *consumer, lease *lease, wire_msg *made);
hash128 made_digest(const wire_msg *made); /* as its header says */
/* Remembers who made a row that was sent. Its bytes must not be in consumer->unreturned yet. */
WARN_UNUSED status sent_row_add(consumer_seat *consumer, const made_row *sent);
/* NULL if the row was not sent lately. A row that was given back long ago may be forgotten. */
const made_row *sent_row_find(const consumer_seat *consumer, uint64_t row);
/* Makes room for a consumer, not yet in the list, that says that it is a rank of a run: one that
 * has said the same is closed if it has gone, or if it is this one on an earlier connection.
 * CONFIG, and the newcomer may not stay: that one is there. */
WARN_UNUSED status twin_make_room(dispatch *dispatch, const consumer_seat *newcomer,
                                  const char *name);

/* doubts.c */
/* The worker says that an item of its row lease cannot be decoded. A decider tries it alone. */
WARN_UNUSED status failure_told(lease *lease, int64_t item, const char *cause,
                                const worker_seat *worker);
/* The decider has decoded the item that it was to try alone. Who said otherwise is excluded, and
 * all its seats go. */
void failure_denied(dispatch *dispatch, lease *lease, const worker_seat *worker);
/* Whether this decider may try the item of which another has said that it cannot be decoded. */
bool failure_may_try(const dispatch *dispatch, const worker_seat *worker, const lease *lease);
void failures_go_on(dispatch *dispatch); /* has what was told tried alone */
/* A worker has made the row of this lease: its consumer gets it, or a decider makes it first. Takes
 * the lease and the message's parts, unless it fails. */
WARN_UNUSED status row_made(dispatch *dispatch, lease *lease, const worker_seat *worker,
                            wire_msg *message);
/* Whether the worker has not made this row before. */
bool doubt_may_take(const worker_seat *worker, const lease *lease);
/* How many deciders at least must be here for this lease. */
int doubt_deciders(const dispatch *dispatch, const lease *lease);
void doubts_go_on(dispatch *dispatch); /* sends drawn rows that no decider can check */
int doubts_waiting(const dispatch *dispatch);
bool decider_is_here(const dispatch *dispatch, uint64_t except); /* but for that seat's number */
bool decider_can_take(const dispatch *dispatch, const lease *lease);
/* A decider has found the word of this account's workers to be false: excludes it. Its seats go. */
void key_contradicted(dispatch *dispatch, uint64_t account, const char *why);
/* Handles REFUSE of a consumer, whose session ends. */
WARN_UNUSED status refusal_take(dispatch *dispatch, consumer_seat *consumer, const json_value *said,
                                const char *name);
/* If the row of this new lease was refused before, a decider makes it and says who is wrong. */
WARN_UNUSED status refusal_apply(dispatch *dispatch, const consumer_seat *consumer, lease *lease);

/* seats.c */
/* Makes TERMS from the options as they are now. */
WARN_UNUSED status dispatch_make_terms(dispatch *dispatch);
/* The same, and sends them to all workers. A worker whose terms change starts anew. */
WARN_UNUSED status dispatch_new_terms(dispatch *dispatch);
WARN_UNUSED status seat_send_terms(dispatch *dispatch, const wire_peer *to);
worker_seat *seat_find(dispatch *dispatch, const wire_peer *peer);      /* NULL if there is none */
worker_seat *seat_of_number(const dispatch *dispatch, uint64_t number); /* NULL: it has left */
/* Whether a worker was asked to start anew so lately that it will be back. */
bool seat_is_awaited(const dispatch *dispatch);
/* Whether the worker may be given work: it is there and has shown what it is. */
bool seat_can_work(const worker_seat *worker);
worker_seat *seat_of_pid(dispatch *dispatch, pid_t pid); /* a local one; NULL */
/* Removes a worker that has gone. Its leases are given again, and its item in work is judged by how
 * it went; `what` is the cause in words. */
void seat_gone(dispatch *dispatch, worker_seat *worker, loss how, const char *what);
/* The worker takes too long: its leases are given again, and nothing is blamed. Its seat stays,
 * marked late, until its connection ends or it leaves. Its answer may still arrive, behind a JOIN
 * that it sent while it was idle, and must not be taken for the answer of a new worker. */
void seat_set_aside(dispatch *dispatch, worker_seat *worker, const char *what);
/* The sample is bad from here on, for this reason, in the rows of all who have been welcomed. */
void seats_quarantine(dispatch *dispatch, source *source, int64_t sample, const char *cause);
/* Quarantines the sample that an item of a row lease is, or all branches of a prefix. */
void seats_condemn(dispatch *dispatch, const lease *lease, int64_t item, const char *cause);
/* The worker's connection has ended after it sent what was just read, which is no breach. */
void seat_unreachable(worker_seat *worker);
/* The worker has left, or its connection has ended. If that is all that it did, it counts as a
 * breach of its key, whose other seats may go with it. */
void seat_left(dispatch *dispatch, worker_seat *worker, loss how, const char *what);
/* Takes the lease in work from a worker that still may answer for it. */
lease *seat_take_away(worker_seat *worker);
/* Tells a worker to come back after this time, and why. */
WARN_UNUSED status seat_send_wait(dispatch *dispatch, const wire_peer *to, int64_t wait_ns,
                                  const char *why);
void seats_send_off(dispatch *dispatch, account *of); /* all workers of an excluded key */
/* Counts a breach of its key. True if that excludes the key: then call seats_send_off. */
bool seat_breach(const dispatch *dispatch, const worker_seat *worker, const char *why);
/* Sends BYE to a worker that has no seat, or a supervisor: it is to come back, or not. */
#define BYE_AGAIN    "{\"again\":true}"
#define BYE_FOR_GOOD "{\"again\":false}"
void seat_send_bye(dispatch *dispatch, const wire_peer *to, const char *json);
/* Has a worker that holds no lease leave, to come back (`again`) or for good. */
void seat_retire(dispatch *dispatch, worker_seat *worker, bool again);
source *lease_source(const lease *lease);

/* Tells a worker, and the log, why it is dismissed: the thread's note, with this code. */
void seat_tell_dismissal(dispatch *dispatch, const worker_seat *worker, status st);
/* Sends away a worker that broke the protocol. Its lease is given again and no sample is blamed,
 * however often this happens, since such a worker proves nothing. A local worker is killed. */
void seat_dismiss(dispatch *dispatch, worker_seat *worker, const char *what);

/* A supervisor has said that it is there. */
WARN_UNUSED status supervisor_heard(dispatch *dispatch, const wire_peer *from, const char *name);
void supervisors_tick(dispatch *dispatch, int64_t now);
/* Forgets all supervisors; `tell`: they are to leave for good. */
void supervisors_leave(dispatch *dispatch, bool tell);

/* joining.c */
/* Handles JOIN, a first or a further one. */
WARN_UNUSED status seat_join(dispatch *dispatch, const wire_peer *from, const char *name,
                             const json_value *said);
/* Compares the fingerprints that a worker told with this daemon's. Sends TERMS once those of
 * pictures agree, and allows work once all do. MISMATCH: the seat is removed, and the caller tells
 * the worker. */
WARN_UNUSED status seat_prove(dispatch *dispatch, worker_seat *worker, const char *name);

/* worker_answers.c */
/* Each of these three ends what the worker has in work, unless the answer is late. PROTOCOL if it
 * does not answer the lease. */
WARN_UNUSED status answer_row(dispatch *dispatch, worker_seat *worker, const frame *head,
                              wire_msg *message, const char *name);
WARN_UNUSED status answer_records(dispatch *dispatch, worker_seat *worker, const frame *head,
                                  const json_value *said, const char *name);
WARN_UNUSED status answer_failed(dispatch *dispatch, worker_seat *worker, const frame *head,
                                 const json_value *said, const char *name);
/* Handles ON: the worker is at another item, or tells where its time went. */
WARN_UNUSED status answer_on(dispatch *dispatch, worker_seat *worker, const frame *head,
                             const json_value *said, const char *name);

/* Writes [{"file":F,"warning":W}...], at most `most` entries from number `from` on. Returns the
 * number of the next one. */
int64_t damage_put(const source *source, int64_t from, int64_t most, json_writer *out);

/* fingerprinting.c */
/* Starts the process, unless one is running or nothing is missing. */
WARN_UNUSED status fingerprinting_start(dispatch *dispatch);
void fingerprinting_tick(
    dispatch *dispatch); /* kills one that hangs, and starts it again where needed */

/* fingerprint_check.c */
/* Whether the fingerprint is made with the video decoder, so only if the data may hold videos. */
bool print_needs_videos(print_kind kind);
/* Whether this fingerprint is needed and not known yet. */
bool prints_are_wanted(const dispatch *dispatch, print_kind kind);
/* Whether all fingerprints that streams of the opened sections carry are known. */
bool fingerprints_are_known(const dispatch *dispatch);
void fingerprints_of_source(const dispatch *dispatch, source *source);
/* The first fingerprint in which the worker differs from this daemon, or that its build lacks;
 * N_PRINTS if there is none. A worker says all of them together with that of its tokenizer. */
print_kind fingerprints_of_worker(const dispatch *dispatch, const worker_seat *worker);
/* The refusal of a worker whose fingerprint of `kind` differs: MISMATCH. */
WARN_UNUSED status fingerprints_refuse_worker(const fingerprints *theirs, const fingerprints *ours,
                                              print_kind kind, int64_t pid, const char *host,
                                              const char *name);
/* Checks that a stream that continues was made by what has this daemon's fingerprints. A cursor
 * without fingerprints passes. */
WARN_UNUSED status fingerprints_check_cursor(const source *source, const json_value *cursor,
                                             const char *name);

/* leasing.c */
void seats_check_time(dispatch *dispatch, int64_t now); /* finds workers that hang or have gone */
void seats_schedule(dispatch *dispatch);                /* gives work to idle workers */

/* Whether the images of the next row are to be filtered and compressed, if the options say auto.
 * Pure rules: no sockets, no clock. The choice never enters the stream, since
 * a receiver takes either form.
 *
 * Compressing costs a worker's core time and roughly halves what is sent. Time is lost if the
 * workers are the slower part, and gained if a link is. Two links may be the slower part: the one
 * to the consumer, which shows in how much of the credit is under way; and the one to a remote
 * worker, which shows in how long its rows take to arrive. On ipc there is no link, only memory. */
/* The choice for a consumer that is not on ipc. was: the choice before. unreturned: bytes sent and
 * not given back. credit: bytes that may still be reserved. row: bytes of a row. Between the two
 * thresholds the choice stays as it was. */
bool compress_for_consumer(bool was, int64_t unreturned, int64_t credit, int64_t row);
/* Notes that a row of this many bytes arrived `ns` later than the time that making it took. */
void compression_link_saw(compression_link *link, int64_t bytes, int64_t ns);
bool compress_for_link(const compression_link *link);

/* payload.c */
/* Writes a lease as JSON: *out [*out_size], on the heap. row: the documents of a LEASE_ROW. `ship`
 * receives the bytes of the lease's files; NULL if the worker finds them itself. What is needed
 * meanwhile is added to the scratch memory. */
WARN_UNUSED status payload_lease(dispatch *dispatch, lease *lease, const planned_row *row,
                                 bool press, wire_msg *ship, char **out, size_t *out_size);

/* tags.c */
/* Makes the tag of a row that this worker is going to make: lease->tag. The row has these
 * documents. */
WARN_UNUSED status tag_make(dispatch *dispatch, lease *lease, const planned_row *row,
                            const worker_seat *worker);
/* How many bytes of a tag the list of the row's blank documents is. */
WARN_UNUSED status tag_list_bytes(consumer_seat *consumer, const planned_row *row, arena *memory,
                                  int64_t *out);

/* local.c */
void local_tick(dispatch *dispatch, int64_t now);
void local_scale(dispatch *dispatch, int target);
/* So many deciders are needed now; a minute after that they may leave. */
void local_need(dispatch *dispatch, int deciders);
/* Whether local workers decide, or will once they have started. */
bool local_may_decide(const dispatch *dispatch);
void local_follow_options(dispatch *dispatch); /* as many as prepd.workers says */
void local_joined(dispatch *dispatch, pid_t pid);
void local_begun(dispatch *dispatch, pid_t pid);
/* The thread's note says why this child cannot begin. */
void local_said_why(dispatch *dispatch, pid_t pid);
/* The child with this ticket; NULL if there is none. */
const local_child *local_child_with(const dispatch *dispatch, const char *ticket);
void local_kill(dispatch *dispatch, pid_t pid); /* a child that does not keep its own time limit */
bool local_is_leaving(const dispatch *dispatch, pid_t pid);
int local_alive(const dispatch *dispatch);
local_child *local_child_of(const dispatch *dispatch, pid_t pid); /* NULL: not one of ours */
void local_end(dispatch *dispatch, const local_child *child, bool at_once); /* if it runs */
/* A child ended before it began any work. The pool waits before it starts another, or gives up. */
void local_failed_at_start(dispatch *dispatch, const char *what);
/* operator_commands.c */
/* Handles a message from the control endpoint. */
WARN_UNUSED status operator_command(dispatch *dispatch, const wire_peer *from,
                                    const wire_msg *message, const char *name);

/* reaping.c */
/* Judges the children that have ended once their last messages were read. */
void local_hear_last_words(dispatch *dispatch);
void local_leave(dispatch *dispatch); /* tells all children to leave */
/* Whether all have. Those that take too long are killed. */
bool local_has_left(dispatch *dispatch);

#endif
