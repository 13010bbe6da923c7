/* frame.h: the fixed binary header in front of every message (proto/README.md has the byte table).
 *
 * Read field by field, bounds first; structs never cross raw. */
#ifndef TESSERA_PROTO_FRAME_H
#define TESSERA_PROTO_FRAME_H

#include <stdint.h>

#include "common/base/hash.h"
#include "common/base/span.h"
#include "common/base/status.h"

enum {
    FRAME_MAGIC = 0x41525354, /* "TSRA" read little-endian */
    FRAME_VERSION = 1,
    HELLO_BYTES = 8 << 20, /* of JSON, at most: a part of a message to prepd */
    FRAME_BYTES = 64,
    FRAME_MAX_IMAGES = 65536,
    FRAME_MAX_PAYLOAD = 1 << 30, /* bytes, decoded row block */
};

/* Kinds between trainer and dispatcher, and between worker and dispatcher. The payload of all but
 * ROW is one part of JSON. */
#define FRAME_KINDS(X)                                                                             \
    X(KIND_HELLO, 1, "hello")      /* consumer -> dispatcher */                                    \
    X(KIND_WELCOME, 2, "welcome")  /* dispatcher -> consumer */                                    \
    X(KIND_CREDIT, 3, "credit")    /* consumer -> dispatcher: bytes granted */                     \
    X(KIND_ROW, 4, "row")          /* worker -> dispatcher -> consumer */                          \
    X(KIND_END, 5, "end")          /* dispatcher -> consumer: no more rows */                      \
    X(KIND_ERROR, 6, "error")      /* either way: refused, with the reason */                      \
    X(KIND_BYE, 7, "bye")          /* consumer or worker leaves */                                 \
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

const char *frame_kind_name(int kind); /* "unknown" for others */

typedef struct frame {
    frame_kind kind;
    uint64_t row;         /* row number in the stream; lease number for worker messages */
    uint32_t n_images;    /* image parts that follow the block; 0 unless ROW */
    uint64_t block_bytes; /* decoded size of the second part */
    uint64_t image_bytes; /* decoded sum of all image parts */
    hash128 digest;       /* ROW: row_digest; others: hash of the JSON */
} frame;

void frame_encode(const frame *f, uint8_t out[FRAME_BYTES]);
/* peer names the sender in errors. Another version: ST_PROTOCOL whose text has both versions. */
WARN_UNUSED status frame_decode(span bytes, const char *peer, frame *out);

#endif
