/* recorded.h: a recording, served the way the daemon serves a stream: HELLO and WELCOME, credit,
 * rows in order, END, over the same sockets; no data set, no workers, nothing decoded here. For
 * trainers that are to be fed live where there are no pictures (tests/gpu feed), and for a stream
 * that several runs share. */
#ifndef TESSERA_PREPD_RECORDED_H
#define TESSERA_PREPD_RECORDED_H

#include "common/status.h"
#include "proto/wire.h"

/* Of a socket for consumers, whose largest message is a HELLO with a cursor's quarantine list. */
extern const wire_limits consumer_limits;

/* The options of a HELLO are those the stream is made of (its own JSON), or it takes the stream as
 * it is (null). CONFIG names the first key that differs; name: the consumer's, for errors. */
WARN_UNUSED status hello_options_agree(const char *stream_json, const json_value *hello,
                                       const char *name);

/* The answer to CREDIT of a peer without a session: UNAVAILABLE, as of a daemon that went. ZeroMQ
 * connects again in silence, and sends what the lost connection had not taken over the new one. */
WARN_UNUSED status hello_is_missing(const char *name);

/* Until SIGTERM or SIGINT; again and again from the first row. keys: folder of CURVE keys, "" none.
 */
WARN_UNUSED status recorded_serve(const char *path, const char *endpoint, const char *keys);

#endif
