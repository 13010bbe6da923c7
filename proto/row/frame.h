/* SPDX-License-Identifier: Apache-2.0 */
/* frame.h: the fixed 64-byte header that begins every message; wire.md has its byte table.
 *
 * The header tells the kind of a message and the decoded size of what follows, so that a receiver
 * can refuse it before it allocates anything. It is read field by field and bounds are checked
 * first; a struct is never copied to or from the wire. */
#ifndef TESSERA_PROTO_ROW_FRAME_H
#define TESSERA_PROTO_ROW_FRAME_H

#include <stdint.h>

#include "common/base/hash.h"
#include "common/base/span.h"
#include "common/base/status.h"

enum {
    FRAME_MAGIC = 0x41525354, /* the bytes "TSRA", read little-endian */
    FRAME_VERSION = 1,
    SESSION_VERSION = 3,   /* of HELLO and WELCOME */
    HELLO_BYTES = 8 << 20, /* prepd refuses a longer part from a consumer */
    FRAME_BYTES = 64,
    FRAME_MAX_IMAGES = 65536,
    FRAME_MAX_PAYLOAD = 1 << 30, /* bytes of a decoded block, and of all decoded images together */
};

/* Kinds of messages between consumer and dispatcher (1 to 8), worker and dispatcher (16 to 21, and
 * ROW), control and dispatcher (32, 33). Every kind but ROW has one part of JSON after the header;
 * only a LEASE may have more parts, the files of its samples. */
#define FRAME_KINDS(X)                                                                             \
    X(KIND_HELLO, 1, "hello")      /* consumer -> dispatcher */                                    \
    X(KIND_WELCOME, 2, "welcome")  /* dispatcher -> consumer */                                    \
    X(KIND_CREDIT, 3, "credit")    /* consumer -> dispatcher: bytes granted */                     \
    X(KIND_ROW, 4, "row")          /* worker -> dispatcher -> consumer */                          \
    X(KIND_END, 5, "end")          /* dispatcher -> consumer: no more rows */                      \
    X(KIND_ERROR, 6, "error")      /* either way: refused, with the reason */                      \
    X(KIND_BYE, 7, "bye")          /* consumer or worker leaves */                                 \
    X(KIND_REFUSE, 8, "refuse")    /* consumer -> dispatcher: a row is not what its tag says */    \
    X(KIND_JOIN, 16, "join")       /* worker -> dispatcher */                                      \
    X(KIND_TERMS, 17, "terms")     /* dispatcher -> worker: options of the stream */               \
    X(KIND_LEASE, 18, "lease")     /* dispatcher -> worker: make this */                           \
    X(KIND_ON, 19, "on")           /* worker -> dispatcher: which sample it is on */               \
    X(KIND_RECORDS, 20, "records") /* worker -> dispatcher: index records */                       \
    X(KIND_FAILED, 21, "failed")   /* worker -> dispatcher: a sample's decode error */             \
    X(KIND_COMMAND, 32, "command") /* control -> dispatcher */                                     \
    X(KIND_ANSWER, 33, "answer")   /* dispatcher -> control */

typedef enum frame_kind {
#define FRAME_KIND_ENUM(name, value, text) name = value,
    FRAME_KINDS(FRAME_KIND_ENUM)
#undef FRAME_KIND_ENUM
} frame_kind;

/* The kind's name for messages, such as "hello"; "unknown" for a number that is no kind. */
const char *frame_kind_name(int kind);

typedef struct frame {
    frame_kind kind;
    uint64_t row;      /* row number in the stream; in messages of a worker, the lease's number */
    uint32_t n_images; /* image parts after the block; 0 in any other kind than ROW */
    uint64_t block_bytes; /* decoded size of the part after the header */
    uint64_t image_bytes; /* decoded size of all image parts together */
    hash128 digest; /* ROW: row_digest; other kinds: the hash of the JSON, zero if not given */
} frame;

/* Writes the header's bytes, with their check. */
void frame_encode(const frame *header, uint8_t out[FRAME_BYTES]);
/* Reads a header and checks its magic, version, size, check, kind and bounds. peer names the sender
 * in errors, which are all ST_PROTOCOL; the text about another version names both versions. */
WARN_UNUSED status frame_decode(span bytes, const char *peer, frame *out);

#endif
