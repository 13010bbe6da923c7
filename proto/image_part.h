/* image_part.h: the head of an image part, checked. Private to proto; byte table in README.md. */
#ifndef TESSERA_PROTO_IMAGE_PART_H
#define TESSERA_PROTO_IMAGE_PART_H

#include "common/base/span.h"
#include "common/base/status.h"
#include "proto/codec.h"

enum { IMAGE_HEAD_BYTES = 32, IMAGE_CHECK_BYTES = 8 };

typedef struct image_part {
    image_filter filter;
    image_codec codec;
    uint32_t patch_bytes; /* PATCH_BYTES: an image; VIDEO_PATCH_BYTES: a video */
    uint32_t n_patches;
    uint64_t decoded_bytes;           /* n_patches * patch_bytes */
    uint8_t check[IMAGE_CHECK_BYTES]; /* first bytes of XXH3-128 of the decoded pixels */
    span payload;                     /* borrowed from the part */
} image_part;

void image_part_head(const image_part *p, uint8_t out[IMAGE_HEAD_BYTES]);
/* Sizes that agree among themselves, a filter and codec this version knows, or ST_PROTOCOL. */
WARN_UNUSED status image_part_parse(span bytes, const char *peer, const char *what,
                                    image_part *out);

#endif
