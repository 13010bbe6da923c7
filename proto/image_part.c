/* image_part.c: writes and reads the head of an image part. wire.md has the same byte table. */
#include "proto/image_part.h"

enum {
    AT_FILTER = 0,      /* u8 */
    AT_CODEC = 1,       /* u8 */
    AT_PATCH_BYTES = 2, /* u16 */
    AT_PATCHES = 4,     /* u32 */
    AT_DECODED = 8,     /* u64 */
    AT_CHECK = 16,      /* 8 bytes */
    AT_PAYLOAD = 24,    /* u64, bytes after the head */
};

void image_part_head(const image_part *part, uint8_t out[IMAGE_HEAD_BYTES])
{
    out[AT_FILTER] = (uint8_t)part->filter;
    out[AT_CODEC] = (uint8_t)part->codec;
    store_u16(out + AT_PATCH_BYTES, (uint16_t)part->patch_bytes);
    store_u32(out + AT_PATCHES, part->n_patches);
    store_u64(out + AT_DECODED, part->decoded_bytes);
    memcpy(out + AT_CHECK, part->check, IMAGE_CHECK_BYTES);
    store_u64(out + AT_PAYLOAD, part->payload.size);
}

status image_part_parse(span bytes, const char *peer, const char *what, image_part *out)
{
    const uint8_t *data = bytes.data;
    if (bytes.size < IMAGE_HEAD_BYTES)
        return FAIL_IN(ST_PROTOCOL, peer, "%s has %zu bytes, expected a head of %d", what,
                       bytes.size, IMAGE_HEAD_BYTES);
    if (data[AT_FILTER] > IMAGE_FILTER_PLANE || data[AT_CODEC] > IMAGE_CODEC_ZSTD)
        return FAIL_AT(ST_PROTOCOL, peer, -1, AT_FILTER,
                       "%s has filter %d and codec %d, this version knows 0 to %d and 0 to %d",
                       what, data[AT_FILTER], data[AT_CODEC], IMAGE_FILTER_PLANE, IMAGE_CODEC_ZSTD);
    image_part image = {.filter = (image_filter)data[AT_FILTER],
                        .codec = (image_codec)data[AT_CODEC],
                        .patch_bytes = load_u16(data + AT_PATCH_BYTES),
                        .n_patches = load_u32(data + AT_PATCHES),
                        .decoded_bytes = load_u64(data + AT_DECODED),
                        .payload = span_of(data + IMAGE_HEAD_BYTES, bytes.size - IMAGE_HEAD_BYTES)};
    memcpy(image.check, data + AT_CHECK, IMAGE_CHECK_BYTES);
    if (image.patch_bytes != PATCH_BYTES && image.patch_bytes != VIDEO_PATCH_BYTES)
        return FAIL_AT(ST_PROTOCOL, peer, -1, AT_PATCH_BYTES,
                       "%s has patches of %u bytes, expected %d (image) or %d (video)", what,
                       image.patch_bytes, PATCH_BYTES, VIDEO_PATCH_BYTES);
    if (image.decoded_bytes != (uint64_t)image.n_patches * image.patch_bytes ||
        image.decoded_bytes > FRAME_MAX_PAYLOAD)
        return FAIL_AT(
            ST_PROTOCOL, peer, -1, AT_DECODED,
            "%s has %llu decoded bytes in %u patches of %u bytes, expected their product, at "
            "most %d",
            what, (unsigned long long)image.decoded_bytes, image.n_patches, image.patch_bytes,
            FRAME_MAX_PAYLOAD);
    if (load_u64(data + AT_PAYLOAD) != image.payload.size)
        return FAIL_AT(ST_PROTOCOL, peer, -1, AT_PAYLOAD,
                       "%s has %zu bytes after its head, which says %llu", what, image.payload.size,
                       (unsigned long long)load_u64(data + AT_PAYLOAD));
    if (image.codec == IMAGE_CODEC_NONE && image.payload.size != image.decoded_bytes)
        return FAIL_AT(ST_PROTOCOL, peer, -1, AT_PAYLOAD,
                       "%s has %zu uncompressed bytes, expected %llu", what, image.payload.size,
                       (unsigned long long)image.decoded_bytes);
    *out = image;
    return ST_OK;
}
