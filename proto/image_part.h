/* image_part.h: the 32-byte head of an image part. wire.md has its byte table. Private to proto. */
#ifndef TESSERA_PROTO_IMAGE_PART_H
#define TESSERA_PROTO_IMAGE_PART_H

#include "common/base/span.h"
#include "common/base/status.h"
#include "proto/codec.h"

enum { IMAGE_HEAD_BYTES = 32, IMAGE_CHECK_BYTES = 8 };

typedef struct image_part {
    image_filter filter;
    image_codec codec;
    uint32_t patch_bytes; /* PATCH_BYTES for a picture, VIDEO_PATCH_BYTES for a clip */
    uint32_t n_patches;
    uint64_t decoded_bytes;           /* n_patches * patch_bytes */
    uint8_t check[IMAGE_CHECK_BYTES]; /* first bytes of XXH3-128 of the decoded pixels */
    span payload;                     /* the bytes after the head, borrowed */
} image_part;

/* Writes the head. */
void image_part_head(const image_part *part, uint8_t out[IMAGE_HEAD_BYTES]);
/* Reads the head of a part. ST_PROTOCOL, naming the peer and the part (what), unless its sizes
 * agree with each other and this version knows its filter and codec. The pixels are not looked at.
 */
WARN_UNUSED status image_part_parse(span bytes, const char *peer, const char *what,
                                    image_part *out);

#endif
