/* rank_link_frame.h: what ranks tell each other beside their collectives, as bytes.
 *
 *   0  magic "TSRK"      4  protocol, u16      6  kind, u16      8  bytes that follow, u32
 *
 * little-endian. HELLO: rank, size, pid (u32 each), then host, version and options as texts with
 * their zero. WELCOME: ID_BYTES for the engine. REFUSE, LOST: a text. BEAT: where its rank is, a
 * text. WAITS: the same, and its rank waits for something beside its calls, or of rank 0 some other
 * does. BYE: nothing. Texts carry no zero at their end but HELLO's. */
#ifndef TESSERA_TRAINER_PARALLEL_RANK_LINK_FRAME_H
#define TESSERA_TRAINER_PARALLEL_RANK_LINK_FRAME_H

#include "common/base/span.h"
#include "common/base/status.h"

enum {
    CONTROL_PROTOCOL = 1,
    CONTROL_HEADER = 12,
    CONTROL_TEXT_MAX = 4096,
    CONTROL_HELLO_MAX = 1 << 17,
    CONTROL_ID_BYTES = 128
};

typedef enum rank_link_kind {
    CONTROL_HELLO = 1,
    CONTROL_WELCOME,
    CONTROL_REFUSE,
    CONTROL_BEAT,
    CONTROL_LOST,
    CONTROL_BYE,
    CONTROL_WAITS
} rank_link_kind;

typedef struct rank_link_hello {
    uint32_t rank, size, pid;
    const char *host, *version;
    const char *options; /* "key: value" lines, of conf_print */
} rank_link_hello;

void rank_link_header_put(uint8_t out[CONTROL_HEADER], rank_link_kind kind, size_t size);
/* ST_PROTOCOL: not ours, another protocol, an unknown kind, or more bytes than its kind may have.
 */
WARN_UNUSED status rank_link_header_get(const uint8_t in[CONTROL_HEADER], rank_link_kind *out_kind,
                                        size_t *out_size);
/* The payload; heap, the caller frees. */
WARN_UNUSED status rank_link_hello_put(const rank_link_hello *h, uint8_t **out, size_t *out_size);
/* Texts are borrowed from the payload. */
WARN_UNUSED status rank_link_hello_get(span payload, rank_link_hello *out);

/* The first option that `theirs` has otherwise, of those that all ranks must agree on: "key: value
 * here, value there" in `out`. False if there is none. */
bool rank_link_options_differ(const char *ours, const char *theirs, char *out, size_t size);

#endif
