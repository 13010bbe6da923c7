/* codec.h: a row <-> the parts of a ROW message: header, zstd block, one part per item.
 *
 * An image part is a 32-byte head (filter, codec, patch size and count, decoded size, 8 bytes of
 * hash, payload size) and the bytes. Filter "plane": subtract green, then a + b - c prediction
 * inside each 16x16 patch. One-shot zstd frames with content size, window <= 2^27;
 * every declared size is checked against the header before memory is taken. */
#ifndef TESSERA_PROTO_CODEC_H
#define TESSERA_PROTO_CODEC_H

#include "common/base/arena.h"
#include "proto/assign.h"
#include "proto/batch.h"
#include "proto/frame.h"
#include "proto/wire.h"

typedef enum image_filter { IMAGE_FILTER_NONE = 0, IMAGE_FILTER_PLANE = 1 } image_filter;
typedef enum image_codec { IMAGE_CODEC_NONE = 0, IMAGE_CODEC_ZSTD = 1 } image_codec;

typedef struct codec codec; /* zstd contexts and scratch of one thread */

WARN_UNUSED status codec_new(codec **out);
void codec_free(codec **c);

/* Row number goes into the header. Images are cut from r->pixels and r->pixels_video by grid_thw,
 * or taken from r->items, one part per item. Appends 2 + n_items parts to an empty message.
 */
WARN_UNUSED status codec_encode(codec *c, const row *r, uint64_t number, image_filter filter,
                                image_codec image, wire_msg *out);

/* Without filter and codec a part is a head and the pixels as they are, so they may be written into
 * it at once: room for these bytes of an item as the next part of `items`. */
WARN_UNUSED status codec_item_room(wire_msg *items, size_t bytes, uint8_t **out_pixels);
/* The pixels of the i-th of them are written: its head, whose hash finds them in the nearest cache.
 */
void codec_item_done(wire_msg *items, size_t i, bool is_video);
/* codec_encode where every one of r->items has such a part, done, in order, with these pixels in
 * it. Takes the parts. */
WARN_UNUSED status codec_encode_made(codec *c, const row *r, uint64_t number, wire_msg *items,
                                     wire_msg *out);

/* One failed row leaves codec and arena as they were. ST_PROTOCOL names peer and part.
 * Checks header, sizes, checksums, digest and row_check; arrays and texts live in a. */
WARN_UNUSED status codec_decode(codec *c, const wire_msg *m, const char *peer, arena *a, row *out,
                                frame *out_head);
/* What assign_cost asks of a row, from its header and block alone; images are not looked at. */
WARN_UNUSED status codec_measure(codec *c, const wire_msg *m, const char *peer, arena *a,
                                 row_measure *out);

#endif
