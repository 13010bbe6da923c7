/* hello.h: what is asked of a consumer, whoever serves it: the dispatcher (greet.c, consumers.c) or
 * a recording (recorded.c). */
#ifndef TESSERA_PREPD_SERVE_HELLO_H
#define TESSERA_PREPD_SERVE_HELLO_H

#include "common/json/json.h"
#include "common/base/status.h"
#include "proto/wire.h"

/* Of a socket for consumers, whose largest message is a HELLO with a cursor's quarantine list. */
extern const wire_limits consumer_limits;

typedef struct hello {
    const char *stream; /* borrowed from the message */
    int rank, ranks;
    int64_t credit_bytes;
    int64_t start_row;
} hello;

/* What stands alone in HELLO, with its ranges; step_rows: rows of a step, of which every rank gets
 * one at least. PROTOCOL, CONFIG. name: the consumer's, for errors. */
WARN_UNUSED status hello_read(const json_value *v, int64_t step_rows, const char *name, hello *out);

/* Its cursor, which may be an object or the text of one; NULL: none. out_parsed is the caller's to
 * free, after *out was used. */
WARN_UNUSED status hello_cursor(const json_value *v, json_value **out_parsed,
                                const json_value **out);

/* The options of a HELLO are those the stream is made of (its own JSON), or it takes the stream as
 * it is (null). CONFIG names the first key that differs. */
WARN_UNUSED status hello_options_agree(const char *stream_json, const json_value *v,
                                       const char *name);

/* The answer to CREDIT of a peer without a session: UNAVAILABLE, as of a daemon that went. ZeroMQ
 * connects again in silence, and sends what the lost connection had not taken over the new one. */
WARN_UNUSED status hello_is_missing(const char *name);
/* The refusal of what no consumer sends; of a worker at the wrong endpoint with the right one. */
WARN_UNUSED status hello_is_other(const char *name, frame_kind kind);

/* CREDIT: what was sent and is given back. PROTOCOL: more than is under way. */
WARN_UNUSED status credit_take(const json_value *v, const char *name, int64_t *inout_credit,
                               int64_t *inout_unreturned);

/* Told to a consumer that has heard nothing for so long, well under any consumer's time limit. */
extern const int64_t STILL_HERE_NS;
/* CREDIT of 0 bytes. False: it has gone, which without BYE shows only here. */
bool consumer_is_there(wire_socket *s, const wire_peer *to);

#endif
