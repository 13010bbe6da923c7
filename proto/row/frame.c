/* SPDX-License-Identifier: Apache-2.0 */
/* frame.c: writes and reads the header of a message. wire.md has the same byte table. */
#include "proto/row/frame.h"

#include <string.h>

enum {
    AT_MAGIC = 0,        /* u32 */
    AT_VERSION = 4,      /* u16 */
    AT_KIND = 6,         /* u16 */
    AT_ROW = 8,          /* u64 */
    AT_IMAGES = 16,      /* u32 */
    AT_RESERVED = 20,    /* u32, zero */
    AT_BLOCK_BYTES = 24, /* u64 */
    AT_IMAGE_BYTES = 32, /* u64 */
    AT_DIGEST = 40,      /* 16 bytes */
    AT_CHECK = 56,       /* first 8 bytes of XXH3-128 over bytes 0 to 55; zero if not given */
    CHECK_BYTES = FRAME_BYTES - AT_CHECK,
};

const char *frame_kind_name(int kind)
{
    switch (kind) {
#define FRAME_KIND_NAME(name, value, text)                                                         \
    case value:                                                                                    \
        return text;
        FRAME_KINDS(FRAME_KIND_NAME)
#undef FRAME_KIND_NAME
    default:
        return "unknown";
    }
}

static bool kind_known(uint16_t kind)
{
    switch (kind) {
#define FRAME_KIND_CASE(name, value, text) case value:
        FRAME_KINDS(FRAME_KIND_CASE)
#undef FRAME_KIND_CASE
        return true;
    default:
        return false;
    }
}

void frame_encode(const frame *header, uint8_t out[FRAME_BYTES])
{
    memset(out, 0, FRAME_BYTES);
    store_u32(out + AT_MAGIC, FRAME_MAGIC);
    store_u16(out + AT_VERSION, FRAME_VERSION);
    store_u16(out + AT_KIND, (uint16_t)header->kind);
    store_u64(out + AT_ROW, header->row);
    store_u32(out + AT_IMAGES, header->n_images);
    store_u64(out + AT_BLOCK_BYTES, header->block_bytes);
    store_u64(out + AT_IMAGE_BYTES, header->image_bytes);
    memcpy(out + AT_DIGEST, header->digest.bytes, sizeof header->digest.bytes);
    hash128 check = hash_bytes(out, AT_CHECK);
    memcpy(out + AT_CHECK, check.bytes, CHECK_BYTES);
}

status frame_decode(span bytes, const char *peer, frame *out)
{
    static const uint8_t not_given[CHECK_BYTES] = {0};
    const uint8_t *data = bytes.data;

    /* The version is checked before the size, since a later version may have a longer header. */
    if (bytes.size < AT_ROW || load_u32(data + AT_MAGIC) != FRAME_MAGIC)
        return FAIL_AT(
            ST_PROTOCOL, peer, -1, 0,
            "received %zu bytes that do not begin with \"TSRA\", expected a message header of "
            "%d bytes: this peer is not a Tessera program",
            bytes.size, FRAME_BYTES);
    uint16_t version = load_u16(data + AT_VERSION), kind = load_u16(data + AT_KIND);
    if (version != FRAME_VERSION)
        return FAIL_AT(
            ST_PROTOCOL, peer, -1, AT_VERSION,
            "the peer speaks protocol version %d, this program version %d: run prepd and "
            "trainer of the same release",
            version, FRAME_VERSION);
    if (bytes.size != FRAME_BYTES)
        return FAIL_AT(ST_PROTOCOL, peer, -1, 0, "the message header has %zu bytes, expected %d",
                       bytes.size, FRAME_BYTES);
    hash128 check = hash_bytes(data, AT_CHECK);
    if (memcmp(data + AT_CHECK, not_given, CHECK_BYTES) &&
        memcmp(data + AT_CHECK, check.bytes, CHECK_BYTES))
        return FAIL_AT(ST_PROTOCOL, peer, -1, AT_CHECK,
                       "the message header's checksum does not match its bytes");
    if (!kind_known(kind))
        return FAIL_AT(ST_PROTOCOL, peer, -1, AT_KIND, "the message has the unknown kind %d", kind);
    if (load_u32(data + AT_RESERVED) != 0)
        return FAIL_AT(ST_PROTOCOL, peer, -1, AT_RESERVED, "the reserved bytes are not zero");

    frame head = {.kind = (frame_kind)kind,
                  .row = load_u64(data + AT_ROW),
                  .n_images = load_u32(data + AT_IMAGES),
                  .block_bytes = load_u64(data + AT_BLOCK_BYTES),
                  .image_bytes = load_u64(data + AT_IMAGE_BYTES)};
    memcpy(head.digest.bytes, data + AT_DIGEST, sizeof head.digest.bytes);
    if (head.n_images > (kind == KIND_ROW ? FRAME_MAX_IMAGES : 0))
        return FAIL_AT(ST_PROTOCOL, peer, -1, AT_IMAGES,
                       "there are %u images in a message of kind %s", head.n_images,
                       frame_kind_name(kind));
    if (head.block_bytes > FRAME_MAX_PAYLOAD)
        return FAIL_AT(ST_PROTOCOL, peer, -1, AT_BLOCK_BYTES,
                       "the block has %llu bytes, expected at most %d",
                       (unsigned long long)head.block_bytes, FRAME_MAX_PAYLOAD);
    if (head.image_bytes > (head.n_images ? FRAME_MAX_PAYLOAD : 0))
        return FAIL_AT(ST_PROTOCOL, peer, -1, AT_IMAGE_BYTES,
                       "there are %llu bytes of pixels in %u images, expected at most %d",
                       (unsigned long long)head.image_bytes, head.n_images, FRAME_MAX_PAYLOAD);
    *out = head;
    return ST_OK;
}
