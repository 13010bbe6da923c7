/* client.h: the consumer's side of a stream: from a daemon or from a recording, the same calls.
 * Used by trainer's receiver and by prepd's verbs (digest, record, sample, check). One thread. */
#ifndef TESSERA_PROTO_CLIENT_H
#define TESSERA_PROTO_CLIENT_H

#include "common/base/arena.h"
#include "proto/batch.h"
#include "proto/codec.h"
#include "proto/frame.h"
#include "proto/wire.h"

typedef struct client client;

typedef struct client_options {
    const char *endpoint;       /* of the daemon */
    const char *keys;           /* folder of CURVE keys; NULL or "" = none */
    const char *stream;         /* "train", "eval" or "sample" (dataset order, a sample per row) */
    const char *stream_options; /* conf_stream_json text; NULL = take the daemon's as they are */
    const char *cursor;         /* JSON from a row or checkpoint; NULL = the beginning */
    int64_t start_row;          /* used if cursor is NULL */
    int rank, ranks;            /* data-parallel consumer rank of ranks */
    int64_t credit_bytes;       /* granted at HELLO, given back as rows are taken */
    bool rows_later;            /* WELCOME may come before all epochs are planned, rows null */
    bool report; /* asks a command's own daemon for its plan, which comes in WELCOME; no rows follow
                  */
    int timeout_ms; /* longest silence while waiting for WELCOME or a row */
    bool patient;   /* a daemon that goes before WELCOME is waited for like one not yet there */
    /* told while WELCOME is waited for, after a second and then every ten; NULL: nobody is */
    void (*waiting)(const char *endpoint, double seconds, const char *why);
    bool (*stopped)(void); /* asked while WELCOME is waited for; true: ST_STOPPED. NULL: never */
} client_options;

/* HELLO, WELCOME. A refusal (other version, other options, other index) is the peer's reason.
 * ST_CONFIG at once where this user may not use the socket.
 * Within timeout_ms: ST_UNAVAILABLE if no daemon listens or it goes, ST_TIMEOUT if one does and is
 * silent. */
WARN_UNUSED status client_open(const client_options *o, client **out);
/* After ST_UNAVAILABLE: waits for the daemon to be there again and enters the stream behind the row
 * of this cursor (NULL: where it was entered before). Nothing is lost or comes twice. ST_TIMEOUT:
 * not yet; call again. ST_UNAVAILABLE: it went once more, or takes nobody now; call again after a
 * while. ST_CONFIG: it came back with another stream. */
WARN_UNUSED status client_rejoin(client *c, const char *cursor, int timeout_ms);

typedef struct replay_options {
    const char *path;
    int64_t loops;     /* how often to run through it; 0 = endlessly */
    uint64_t skip;     /* rows, of all loops together, that were taken before */
    int rank, ranks;   /* data-parallel consumer rank of ranks; 0 ranks: of 1 */
    int64_t step_rows; /* rows of a step, over all ranks: only whole steps count; 0: all rows */
} replay_options;

/* The same rows from a file, shared out among ranks as the daemon does (assign.h). Where all were
 * skipped the first row is ST_END. */
WARN_UNUSED status client_replay(const replay_options *o, client **out);
void client_close(client **c); /* BYE */

/* The one call that another thread may make: a client_next or client_rejoin that waits, now or
 * later, returns ST_STOPPED within a fraction of a second. */
void client_interrupt(client *c);

/* WELCOME's JSON: index digest, samples, refused, seq_len, patch budget, G, buckets, ... */
const char *client_welcome(const client *c);

int64_t client_rows(const client *c); /* of a recording, once through; -1 of a daemon */

/* Rows at a recording's end that make no whole step, and are not sent; 0 of a daemon. */
int64_t client_left_over(const client *c);

/* Next row, decoded and checked into a (arrays live until the arena is reset). A row out of order
 * (row_order.h) fails: ST_PROTOCOL of a daemon, ST_BAD_INPUT of a recording. ST_END after the
 * last; ST_TIMEOUT; ST_UNAVAILABLE if the daemon went. out_head may be NULL. raw, if not NULL, gets
 * the message as it crossed the wire. */
WARN_UNUSED status client_next(client *c, arena *a, row *out, frame *out_head, wire_msg *raw);
/* The same without decoding. */
WARN_UNUSED status client_next_raw(client *c, wire_msg *raw, frame *out_head);

#endif
