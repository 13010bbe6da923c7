/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_codec.c: any bytes as a ROW message. It must be refused, or give a row that is the same
 * after another round trip.
 *
 * An input is one byte of flags and then parts, each with a u32 size before its bytes. With flag 1
 * the parts are an uncompressed row block and the images; the target compresses the block and
 * writes the header, so that the search reaches what the checksums protect. */
#include <stdlib.h>

#include "proto/message/codec.h"
#include "proto/message/zstd_frames.h"

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
    size_t count = 0, at = 0;
    while (count < MAX_PARTS && in.size - at >= 4) {
        size_t part = load_u32(in.data + at);
        at += 4;
        if (part > in.size - at)
            part = in.size - at;
        parts[count++] = span_of(in.data + at, part);
        at += part;
    }
    return count;
}

static void add_header_and_block(const span *parts, size_t count, wire_msg *message)
{
    frame header = {
        .kind = KIND_ROW, .n_images = (uint32_t)(count - 1), .block_bytes = parts[0].size};
    uint8_t head[FRAME_BYTES];
    zstd_frames *contexts = NULL;
    span small;
    for (size_t i = 1; i < count; i++)
        if (parts[i].size >= IMAGE_DECODED_AT + 8)
            header.image_bytes += load_u64(parts[i].data + IMAGE_DECODED_AT);
    frame_encode(&header, head);
    MUST(zstd_frames_new(&contexts));
    MUST(zstd_frames_compress(contexts, parts[0], 0, &small));
    MUST(wire_msg_add(message, head, sizeof head));
    MUST(wire_msg_add(message, small.data, small.size));
    zstd_frames_free(&contexts);
}

static void check_round_trip(codec *coder, const row *packed, const frame *head)
{
    wire_msg *message = NULL;
    arena memory;
    row back;
    frame again;
    arena_init(&memory, 0);
    MUST(wire_msg_new(&message));
    MUST(codec_encode(coder, packed, head->row, IMAGE_FILTER_PLANE, IMAGE_CODEC_ZSTD, message));
    MUST(codec_decode(coder, message, "fuzz", &memory, &back, &again));
    if (!hash_equal(head->digest, again.digest))
        abort();
    wire_msg_free(&message);
    arena_done(&memory);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    span parts[MAX_PARTS];
    wire_msg *message = NULL;
    codec *coder = NULL;
    arena memory;
    row packed;
    frame head;
    if (size == 0)
        return 0;
    size_t count = cut_parts(span_of(data + 1, size - 1), parts), first = 0;
    arena_init(&memory, ARENA_BYTES);
    MUST(codec_new(&coder));
    MUST(wire_msg_new(&message));
    if (data[0] & 1 && count > 0) {
        add_header_and_block(parts, count, message);
        first = 1;
    }
    for (size_t i = first; i < count; i++)
        MUST(wire_msg_add(message, parts[i].data, parts[i].size));
    row_measure measured;
    status measure = codec_measure(coder, message, "fuzz", &memory, &measured);
    if (codec_decode(coder, message, "fuzz", &memory, &packed, &head) == ST_OK) {
        check_round_trip(coder, &packed, &head);
        MUST(measure);
        if (measured.tokens != packed.n_tokens ||
            measured.patches != packed.n_patches + packed.n_video_patches)
            abort();
    }
    wire_msg_free(&message);
    codec_free(&coder);
    arena_done(&memory);
    return 0;
}
