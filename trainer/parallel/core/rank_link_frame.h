/* SPDX-License-Identifier: Apache-2.0 */
/* rank_link_frame.h: the messages of the rank link, as bytes.
 *
 *   offset  bytes
 *   0       4      magic "TSRK"
 *   4       2      CONTROL_PROTOCOL
 *   6       2      kind
 *   8       4      how many bytes of payload follow
 *
 * All numbers are little-endian. The payload depends on the kind:
 *
 *   HELLO    rank, size and pid (4 bytes each), then host, version and options as texts, each with
 *            a zero at its end
 *   WELCOME  CONTROL_ID_BYTES bytes: the engine's id
 *   REFUSE   a text: why
 *   BEAT     a text: where the rank is
 *   WAITS    as BEAT, and its rank waits for something besides its calls; from rank 0 also if some
 *            other rank does
 *   LOST     a text: which rank is lost, how, and where it was
 *   SHAPE    the number of a micro-batch (8 bytes) and what it needs (LINK_NEEDS bytes): of this
 *            rank; from rank 0 the largest of all
 *   BYE      nothing
 *   SILENT   as LOST, to a rank of which nothing was heard, because of that
 *   NOTE     a text for rank 0, which keeps it for whoever asks
 *   HELD     as BEAT, and its rank waits for the others: in a call, or for its device
 *   LATE     a text: calls of this rank have not ended in time; rank 0 says whose fault that is
 *
 * Texts other than HELLO's have no zero at their end. When you add a kind: give it the next number,
 * its largest payload in rank_link_frame.c (most_bytes), and raise CONTROL_PROTOCOL if older builds
 * cannot do without it. */
#ifndef TESSERA_TRAINER_PARALLEL_CORE_RANK_LINK_FRAME_H
#define TESSERA_TRAINER_PARALLEL_CORE_RANK_LINK_FRAME_H

#include "common/base/span.h"
#include "common/base/status.h"

enum {
    CONTROL_PROTOCOL = 2,
    CONTROL_HEADER = 12, /* bytes before the payload */
    CONTROL_TEXT_MAX = 4096,
    CONTROL_HELLO_MAX = 1 << 17, /* the options are a long text */
    CONTROL_ID_BYTES = 128
};

typedef enum rank_link_kind {
    CONTROL_HELLO = 1,
    CONTROL_WELCOME,
    CONTROL_REFUSE,
    CONTROL_BEAT,
    CONTROL_LOST,
    CONTROL_BYE,
    CONTROL_WAITS,
    CONTROL_SHAPE,
    CONTROL_SILENT,
    CONTROL_NOTE,
    CONTROL_HELD,
    CONTROL_LATE
} rank_link_kind;

typedef struct rank_link_hello {
    uint32_t rank, size, pid;
    const char *host, *version;
    const char *options; /* lines "key: value", as conf_print writes them */
} rank_link_hello;

/* Writes the header of a message whose payload has `size` bytes. */
void rank_link_header_put(uint8_t out[CONTROL_HEADER], rank_link_kind kind, size_t size);
/* Reads a header. ST_PROTOCOL if the bytes are not a message of this protocol, the kind is
 * unknown, or the payload is larger than that kind may have. */
WARN_UNUSED status rank_link_header_get(const uint8_t in[CONTROL_HEADER], rank_link_kind *out_kind,
                                        size_t *out_size);
/* Makes the payload of HELLO in heap memory that the caller frees. ST_CONFIG if the options are
 * longer than the protocol allows. */
WARN_UNUSED status rank_link_hello_put(const rank_link_hello *hello, uint8_t **out,
                                       size_t *out_size);
/* Reads that payload. The texts of *out point into it. ST_PROTOCOL if it is malformed. */
WARN_UNUSED status rank_link_hello_get(span payload, rank_link_hello *out);

/* Compares the options of two ranks, line by line. Returns true if an option that all ranks must
 * agree on differs, and writes the first of them to `out` as "key: value here, value there".
 * Options that may differ (prepd.endpoint, log.*, training.threads) are passed over. */
bool rank_link_options_differ(const char *ours, const char *theirs, char *out, size_t size);

#endif
