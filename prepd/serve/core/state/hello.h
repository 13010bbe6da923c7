/* SPDX-License-Identifier: Apache-2.0 */
/* hello.h: what is asked of a consumer, whether the dispatcher serves it (greet.c, consumers.c) or
 * a recording (recorded.c): the fields of HELLO, and its credit. */
#ifndef TESSERA_PREPD_SERVE_CORE_STATE_HELLO_H
#define TESSERA_PREPD_SERVE_CORE_STATE_HELLO_H

#include "common/json/json.h"
#include "common/base/status.h"
#include "prepd/serve/core/state/outside.h"

/* The limits of a socket for consumers. Their largest message is a HELLO with a long
 * quarantine. */
extern const wire_limits consumer_limits;

/* What a consumer can ask for: rows of the training stream, held-out ones, or some to look at. */
enum { N_STREAMS = 3 };
extern const char *const STREAM_NAMES[N_STREAMS];
/* Its place in this list; N_STREAMS: there is no such stream. */
int find_stream(const char *name);

typedef struct hello {
    const char *stream; /* "train", "eval" or "sample"; borrowed from the message */
    int rank, ranks;
    int64_t credit_bytes;
    int64_t start_row;
    bool prefixes;              /* the consumer knows what a prefix is (doc_prefix) */
    const char *run, *consumer; /* names; "" if not said; borrowed */
} hello;

enum { HELLO_NAME_BYTES = 64 }; /* of each of these names */

/* Reads the fields of HELLO that need no knowledge of the stream, and checks their ranges.
 * step_rows: the rows of a step, of which every rank gets at least one. `name` is the consumer's,
 * for errors. PROTOCOL, or CONFIG for more ranks than rows. */
WARN_UNUSED status hello_read(const json_value *said, int64_t step_rows, const char *name,
                              hello *out);

/* Refuses a consumer of the training stream whose rank is not among `ranks` (prepd.ranks): CONFIG.
 * Held-out rows are for everyone, since a trainer gives all of them to each of its ranks. */
WARN_UNUSED status hello_rank_is_served(const hello *greeting, const char *ranks, const char *name);

/* Refuses a consumer that does not know prefixes a stream that has them: reading cu_seqlens alone,
 * it would train branches without what comes before them: CONFIG. */
WARN_UNUSED status hello_knows_prefixes(bool prefixes, const char *name);

/* Finds HELLO's cursor, which is an object or the text of one; *out is NULL if there is none. The
 * caller frees *out_parsed after it has used *out. */
WARN_UNUSED status hello_cursor(const json_value *said, json_value **out_parsed,
                                const json_value **out);

/* Whether the options in HELLO are those that the stream is made of (`stream_json`). A HELLO
 * without options takes the stream as it is. CONFIG names the first key that differs. */
WARN_UNUSED status hello_options_agree(const char *stream_json, const json_value *said,
                                       const char *name);

/* The refusal of CREDIT from a peer that has not said HELLO: UNAVAILABLE, as if the daemon had
 * gone. ZeroMQ reconnects in silence and sends over the new connection what the lost one had not
 * taken. */
WARN_UNUSED status hello_is_missing(const char *name);
/* The refusal of a message that no consumer sends. A worker at the wrong endpoint is told the right
 * one. */
WARN_UNUSED status hello_is_other(const char *name, frame_kind kind);

/* Takes CREDIT: bytes that were sent and are given back move from *inout_unreturned to
 * *inout_credit. PROTOCOL if that is more than is under way. */
WARN_UNUSED status credit_take(const json_value *said, const char *name, int64_t *inout_credit,
                               int64_t *inout_unreturned);

/* Sends CREDIT of 0 bytes. False if the consumer has gone, which without BYE shows only here. */
bool consumer_is_there(const outside *world, const wire_peer *consumer);
/* Call it now and then. A consumer that has heard nothing since *inout_said_ns for 15 s, well under
 * any consumer's time limit, gets a sign that the daemon is there. True for one that cannot be
 * reached since *inout_away_ns (0: it can) and has not sent BYE for a second after that: what it
 * sent before it left is read after that shows. The caller sets *inout_away_ns when sending fails,
 * and sends nothing while it is set. */
bool consumer_is_lost(const outside *world, const wire_peer *consumer, int64_t now_ns,
                      int64_t *inout_said_ns, int64_t *inout_away_ns);

#endif
