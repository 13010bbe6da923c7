/* fuzz_codec.c: any bytes as a ROW message. It must be refused, or give a row that is the same
 * after another round trip.
 *
 * An input is one byte of flags and then parts, each with a u32 size before its bytes. With flag 1
 * the parts are an uncompressed row block and the images; the target compresses the block and
 * writes the header, so that the search reaches what the checksums protect. */
#include <stdlib.h>

#include "proto/codec.h"
#include "proto/zstd_frames.h"

enum { MAX_PARTS = 64, ARENA_BYTES = 64 << 20, IMAGE_DECODED_AT = 8 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if ((call) != ST_OK)                                                                       \
            abort();                                                                               \
    } while (0)

/* Cuts the input into at most MAX_PARTS parts. A part that claims too many bytes gets those that
 * are left. */
static size_t cut_parts(span in, span parts[MAX_PARTS])
{
    size_t n = 0, at = 0;
    while (n < MAX_PARTS && in.size - at >= 4) {
        size_t part = load_u32(in.data + at);
        at += 4;
        if (part > in.size - at)
            part = in.size - at;
        parts[n++] = span_of(in.data + at, part);
        at += part;
    }
    return n;
}

static void add_header_and_block(const span *parts, size_t n, wire_msg *m)
{
    frame f = {.kind = KIND_ROW, .n_images = (uint32_t)(n - 1), .block_bytes = parts[0].size};
    uint8_t head[FRAME_BYTES];
    zstd_frames *p = NULL;
    span small;
    for (size_t i = 1; i < n; i++)
        if (parts[i].size >= IMAGE_DECODED_AT + 8)
            f.image_bytes += load_u64(parts[i].data + IMAGE_DECODED_AT);
    frame_encode(&f, head);
    MUST(zstd_frames_new(&p));
    MUST(zstd_frames_compress(p, parts[0], 0, &small));
    MUST(wire_msg_add(m, head, sizeof head));
    MUST(wire_msg_add(m, small.data, small.size));
    zstd_frames_free(&p);
}

static void check_round_trip(codec *c, const row *r, const frame *head)
{
    wire_msg *m = NULL;
    arena a;
    row back;
    frame again;
    arena_init(&a, 0);
    MUST(wire_msg_new(&m));
    MUST(codec_encode(c, r, head->row, IMAGE_FILTER_PLANE, IMAGE_CODEC_ZSTD, m));
    MUST(codec_decode(c, m, "fuzz", &a, &back, &again));
    if (!hash_equal(head->digest, again.digest))
        abort();
    wire_msg_free(&m);
    arena_done(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    span parts[MAX_PARTS];
    wire_msg *m = NULL;
    codec *c = NULL;
    arena a;
    row r;
    frame head;
    if (size == 0)
        return 0;
    size_t n = cut_parts(span_of(data + 1, size - 1), parts), first = 0;
    arena_init(&a, ARENA_BYTES);
    MUST(codec_new(&c));
    MUST(wire_msg_new(&m));
    if (data[0] & 1 && n > 0) {
        add_header_and_block(parts, n, m);
        first = 1;
    }
    for (size_t i = first; i < n; i++)
        MUST(wire_msg_add(m, parts[i].data, parts[i].size));
    row_measure measured;
    status measure = codec_measure(c, m, "fuzz", &a, &measured);
    if (codec_decode(c, m, "fuzz", &a, &r, &head) == ST_OK) {
        check_round_trip(c, &r, &head);
        MUST(measure);
        if (measured.tokens != r.n_tokens || measured.patches != r.n_patches + r.n_video_patches)
            abort();
    }
    wire_msg_free(&m);
    codec_free(&c);
    arena_done(&a);
    return 0;
}
