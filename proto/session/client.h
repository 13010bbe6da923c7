/* SPDX-License-Identifier: Apache-2.0 */
/* client.h: the consumer's side of a stream, with the same calls for a daemon and for a recording.
 *
 * client_open connects to a daemon, client_replay opens a file; then client_next returns decoded
 * and checked rows until ST_END. The trainer's receiver uses this, and so do prepd's verbs digest,
 * record, sample and check. A client belongs to one thread; only client_interrupt may be called
 * from another. wire.md describes the session on the wire. */
#ifndef TESSERA_PROTO_SESSION_CLIENT_H
#define TESSERA_PROTO_SESSION_CLIENT_H

#include "common/base/arena.h"
#include "proto/row/batch.h"
#include "proto/message/codec.h"
#include "proto/row/frame.h"
#include "proto/wire/wire.h"

typedef struct client client;

typedef struct client_options {
    const char *endpoint;       /* the daemon's prepd.endpoint */
    const char *keys;           /* folder of CURVE keys; NULL or "" for none */
    const char *stream;         /* "train", "eval" or "sample" (data set order, a sample per row) */
    const char *stream_options; /* text of conf_stream_json, which must agree with the daemon's;
                                 * NULL takes the daemon's options as they are */
    const char *cursor;         /* cursor of a row or checkpoint; NULL begins at start_row */
    const char *quarantine;     /* bad samples that the run knows (bad_samples.h): they are blank
                                 * from the first row on. NULL or "": none. The client adds those
                                 * that its rows list, for HELLOs to come */
    int64_t start_row;          /* first row wanted if there is no cursor */
    int rank, ranks;            /* this is data-parallel consumer `rank` of `ranks` */
    int64_t credit_bytes;       /* bytes of rows that may be under way to this consumer */
    bool rows_later;            /* WELCOME may come before all epochs are planned; it then says
                                 * null for the number of rows */
    const char *run; /* names the run, and this consumer of it, so that the daemon refuses a
                      * second consumer of its rank (wire.md, "Who is who"); NULL: none */
    const char *consumer;
    bool report;    /* asks a command's private daemon for its plan, which WELCOME then
                     * has; no rows follow */
    int timeout_ms; /* longest silence to accept while waiting for WELCOME or a row */
    bool patient;   /* wait for a daemon that leaves before WELCOME, as for one that has
                     * not started yet */
    /* Called while WELCOME is awaited, after one second and then every ten, with the reason. May
     * be NULL. */
    void (*waiting)(const char *endpoint, double seconds, const char *why);
    /* Asked while WELCOME is awaited; true ends the wait with ST_STOPPED. May be NULL. */
    bool (*stopped)(void);
} client_options;

/* Connects to a daemon: sends HELLO and waits for WELCOME. The options are copied.
 *
 * A refusal (another version, other options, another index) has the daemon's code and reason.
 * ST_CONFIG at once if this user may not use the socket. Within timeout_ms, ST_UNAVAILABLE if no
 * daemon listens or the daemon leaves, ST_TIMEOUT if one is there and does not answer. */
WARN_UNUSED status client_open(const client_options *options, client **out);
/* After ST_UNAVAILABLE: waits until the daemon is there again and enters the stream after the row
 * that has this cursor (NULL: where it was entered before). No row is lost or comes twice.
 *
 * ST_TIMEOUT: it is not there yet; call again. ST_UNAVAILABLE: it left once more, or admits no
 * consumer now; call again after a while. ST_CONFIG: it came back with another stream. */
WARN_UNUSED status client_rejoin(client *consumer, const char *cursor, int timeout_ms);

typedef struct replay_options {
    const char *path;
    int64_t loops;     /* how often to run through the file; 0 for ever */
    uint64_t skip;     /* rows to skip, counted over all loops: those that were taken before */
    int rank, ranks;   /* data-parallel consumer `rank` of `ranks`; ranks 0 means 1 */
    int64_t step_rows; /* rows of a step over all ranks: only whole steps are replayed; 0 replays
                        * every row */
} replay_options;

/* Opens a recording, whose rows are shared out among ranks as the daemon does it (share.h). If all
 * rows are skipped, the first call of client_next returns ST_END. ST_BAD_INPUT if the file has not
 * one whole step. */
WARN_UNUSED status client_replay(const replay_options *options, client **out);
/* Says BYE to a daemon and frees everything. Leaves the thread's status note as it was. */
void client_close(client **held);

/* The one call that another thread may make: a client_next or client_rejoin that waits, now or
 * later, returns ST_STOPPED within a fraction of a second. */
void client_interrupt(client *consumer);

/* WELCOME's JSON text: the digest of the index, samples, refused samples, seq_len, patch budget,
 * rows per step, shape buckets and more. It lives as long as the client. */
const char *client_welcome(const client *consumer);

/* Rows of a recording, once through; -1 for a daemon. */
int64_t client_rows(const client *consumer);

/* Rows at the end of a recording that make no whole step and are left out; 0 for a daemon. */
int64_t client_left_over(const client *consumer);

/* Returns the next row, decoded and checked (codec_decode); its arrays live in memory until that
 * arena is reset. out_head (may be NULL) gets its header, raw (may be NULL) the message as it
 * crossed the wire. Taking a row gives its credit back to the daemon.
 *
 * ST_END after the last row; ST_TIMEOUT after timeout_ms of silence; ST_UNAVAILABLE if the daemon
 * has left (see client_rejoin); ST_STOPPED if interrupted. A row out of order (row_order.h) is
 * ST_PROTOCOL from a daemon, ST_BAD_INPUT from a recording. */
WARN_UNUSED status client_next(client *consumer, arena *memory, row *out, frame *out_head,
                               wire_msg *raw);
/* The same without decoding. */
WARN_UNUSED status client_next_raw(client *consumer, wire_msg *raw, frame *out_head);

#endif
