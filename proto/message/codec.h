/* SPDX-License-Identifier: Apache-2.0 */
/* codec.h: turns a row into the parts of a ROW message and back.
 *
 * The parts are the header (frame.h), the row's tensors as one zstd-compressed safetensors block,
 * and one part per visual item. An item's part is a 32-byte head and its pixels,
 * which may be filtered (filter.h) and compressed. Pixels lie in parts of their own so that a
 * worker can decode pictures straight into the message, and a recording keeps a single copy of a
 * picture that many rows show. Frames are one-shot zstd frames that declare their content size,
 * with windows of at most 2^27 bytes; every declared size is checked against the header before
 * memory is taken for it. wire.md specifies the bytes. */
#ifndef TESSERA_PROTO_MESSAGE_CODEC_H
#define TESSERA_PROTO_MESSAGE_CODEC_H

#include "common/base/arena.h"
#include "proto/row/assign.h"
#include "proto/row/batch.h"
#include "proto/row/frame.h"
#include "proto/message/wire_msg.h"

typedef enum image_filter { IMAGE_FILTER_NONE = 0, IMAGE_FILTER_PLANE = 1 } image_filter;
typedef enum image_codec { IMAGE_CODEC_NONE = 0, IMAGE_CODEC_ZSTD = 1 } image_codec;

enum { IMAGE_HEAD_BYTES = 32, IMAGE_CHECK_BYTES = 8 };

/* The zstd contexts and scratch memory of one thread. */
typedef struct codec codec;

WARN_UNUSED status codec_new(codec **out);
void codec_free(codec **held);

/* Appends the 2 + I parts of a ROW message to the empty message out. number goes into the header.
 * The items' pixels are cut from pixels and pixels_video by grid_thw, or taken from items if the
 * row has them. The row is checked first (row_check). On failure out is empty again. */
WARN_UNUSED status codec_encode(codec *coder, const row *packed, uint64_t number,
                                image_filter filter, image_codec image, wire_msg *out);

/* Pixels that are neither filtered nor compressed are sent as they are, so a worker can write them
 * into the message while it decodes. These three calls do that, in this order.
 *
 * Appends a part for an item of this many bytes of pixels to items; the caller fills *out_pixels
 * [bytes] before the message changes again. */
WARN_UNUSED status codec_item_room(wire_msg *items, size_t bytes, uint8_t **out_pixels);
/* The pixels of item `index` are written: fills in its head. The head has a hash of the pixels, so
 * it is best called while they are still in the processor's cache. */
void codec_item_done(wire_msg *items, size_t index, bool is_video);
/* codec_encode for a row whose items all have such a finished part, in order. Moves the parts of
 * items to out. ST_INTERNAL if parts and items do not agree. */
WARN_UNUSED status codec_encode_made(codec *coder, const row *packed, uint64_t number,
                                     wire_msg *items, wire_msg *out);

/* Decodes a ROW message and checks all of it: header, sizes, hashes, row_check, the digest, and the
 * tag (tag.h) if it has one. The
 * arrays and texts of *out live in memory; out_head may be NULL. ST_PROTOCOL names the peer and the
 * part that is wrong. A row that fails leaves coder and memory as they were, so the next one can be
 * decoded. */
WARN_UNUSED status codec_decode(codec *coder, const wire_msg *message, const char *peer,
                                arena *memory, row *out, frame *out_head);
/* What assign_cost needs to know of a row, from its header and block alone. Image parts need not be
 * there and are not looked at. */
WARN_UNUSED status codec_measure(codec *coder, const wire_msg *message, const char *peer,
                                 arena *memory, row_measure *out);

#endif
