/* SPDX-License-Identifier: Apache-2.0 */
/* codec.c: turns rows into messages and back.
 *
 * Encoding checks the row, packs its tensors into a safetensors block, compresses that, and adds a
 * part for each item. Decoding goes the other way in two passes: the first compares every declared
 * size, the second allocates and decompresses. zstd is in zstd_frames.c, the filter in filter.c. */
#include "proto/message/codec.h"

#include <stdio.h>
#include <stdlib.h>

#include "proto/message/filter.h"
#include "proto/row/tag.h"
#include "proto/message/zstd_frames.h"

enum {
    FIRST_IMAGE = 2, /* number of the first image part, after header and block */
    WHAT = 64,       /* bytes for the name of a part in errors */
};

typedef struct image_part {
    image_filter filter;
    image_codec codec;
    uint32_t patch_bytes; /* PATCH_BYTES for a picture, VIDEO_PATCH_BYTES for a clip */
    uint32_t n_patches;
    uint64_t decoded_bytes;           /* n_patches * patch_bytes */
    uint8_t check[IMAGE_CHECK_BYTES]; /* first bytes of XXH3-128 of the decoded pixels */
    span payload;                     /* the bytes after the head, borrowed */
} image_part;

/* The head of an image part. wire.md has the same byte table. */
enum {
    AT_FILTER = 0,      /* u8 */
    AT_CODEC = 1,       /* u8 */
    AT_PATCH_BYTES = 2, /* u16 */
    AT_PATCHES = 4,     /* u32 */
    AT_DECODED = 8,     /* u64 */
    AT_CHECK = 16,      /* 8 bytes */
    AT_PAYLOAD = 24,    /* u64, bytes after the head */
};

static void image_part_head(const image_part *part, uint8_t out[IMAGE_HEAD_BYTES])
{
    out[AT_FILTER] = (uint8_t)part->filter;
    out[AT_CODEC] = (uint8_t)part->codec;
    store_u16(out + AT_PATCH_BYTES, (uint16_t)part->patch_bytes);
    store_u32(out + AT_PATCHES, part->n_patches);
    store_u64(out + AT_DECODED, part->decoded_bytes);
    memcpy(out + AT_CHECK, part->check, IMAGE_CHECK_BYTES);
    store_u64(out + AT_PAYLOAD, part->payload.size);
}

/* Reads the head of a part. ST_PROTOCOL, naming the peer and the part (what), unless its sizes
 * agree with each other and this version knows its filter and codec. The pixels are not looked at.
 */
static status image_part_parse(span bytes, const char *peer, const char *what, image_part *out)
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

struct codec {
    zstd_frames *zstd_frames;
    uint8_t *scratch; /* [capacity] filtered pixels */
    size_t capacity;
};

status codec_new(codec **out)
{
    codec *coder = calloc(1, sizeof *coder);
    if (!coder)
        return FAIL(ST_NO_MEMORY, "no memory for a codec");
    status st = zstd_frames_new(&coder->zstd_frames);
    if (st == ST_OK)
        *out = coder;
    else
        codec_free(&coder);
    return st;
}

void codec_free(codec **held)
{
    if (!held || !*held)
        return;
    zstd_frames_free(&(*held)->zstd_frames);
    free((*held)->scratch);
    free(*held);
    *held = NULL;
}

static status need_scratch(codec *coder, size_t size)
{
    if (size <= coder->capacity)
        return ST_OK;
    uint8_t *grown = realloc(coder->scratch, size);
    if (!grown)
        return FAIL(ST_NO_MEMORY, "no memory for %zu bytes of pixels", size);
    coder->scratch = grown;
    coder->capacity = size;
    return ST_OK;
}

static status add_block(codec *coder, const uint8_t *block, size_t size, wire_msg *out)
{
    span small;
    TRY(zstd_frames_compress(coder->zstd_frames, span_of(block, size), 0, &small));
    return wire_msg_add(out, small.data, small.size);
}

static void check_pixels(image_part *image, const uint8_t *pixels)
{
    const hash128 check = hash_bytes(pixels, image->decoded_bytes);
    memcpy(image->check, check.bytes, IMAGE_CHECK_BYTES);
}

/* Filters and compresses the pixels of one item and appends them as a part: head, then payload. */
static status add_image(codec *coder, const uint8_t *pixels, image_part *image, wire_msg *out)
{
    check_pixels(image, pixels);
    image->payload = span_of(pixels, image->decoded_bytes);
    if (image->filter == IMAGE_FILTER_PLANE) {
        TRY(need_scratch(coder, image->decoded_bytes));
        filter_plane_apply(pixels, image->n_patches, (int)(image->patch_bytes / PATCH_BYTES),
                           coder->scratch);
        image->payload.data = coder->scratch;
    }
    if (image->codec == IMAGE_CODEC_ZSTD)
        TRY(zstd_frames_compress(coder->zstd_frames, image->payload,
                                 image->filter == IMAGE_FILTER_PLANE, &image->payload));
    uint8_t *to;
    TRY(wire_msg_add_space(out, IMAGE_HEAD_BYTES + image->payload.size, &to));
    image_part_head(image, to);
    if (image->payload.size > 0)
        memcpy(to + IMAGE_HEAD_BYTES, image->payload.data, image->payload.size);
    return ST_OK;
}

/* Describes item `at` as a part without its pixels. */
static image_part part_of(const row *packed, int64_t at, bool is_video)
{
    const int32_t *grid = packed->grid_thw + 3 * at;
    image_part image = {.patch_bytes = is_video ? VIDEO_PATCH_BYTES : PATCH_BYTES,
                        .n_patches = (uint32_t)((int64_t)grid[0] * grid[1] * grid[2])};
    image.decoded_bytes = (uint64_t)image.n_patches * image.patch_bytes;
    return image;
}

static status add_images(codec *coder, const row *packed, image_filter filter, image_codec image,
                         wire_msg *out)
{
    const uint8_t *images = packed->pixels, *videos = packed->pixels_video;
    uint8_t *is_video = malloc((size_t)packed->n_items + 1);
    status st = ST_OK;
    if (!is_video)
        return FAIL(ST_NO_MEMORY, "no memory for the kinds of %lld items",
                    (long long)packed->n_items);
    TRY_OR(done, row_find_videos(packed, "row to be sent", is_video));
    for (int64_t i = 0; i < packed->n_items; i++) {
        image_part parts = part_of(packed, i, is_video[i]);
        const uint8_t **from = is_video[i] ? &videos : &images;
        parts.filter = filter;
        parts.codec = image;
        TRY_OR(done,
               add_image(coder, packed->items ? packed->items[i].patches : *from, &parts, out));
        if (!packed->items)
            *from += parts.decoded_bytes;
    }
done:
    free(is_video);
    return st;
}

/* Appends header and block, the parts before the images. */
static status add_front(codec *coder, const row *packed, uint64_t number, wire_msg *out)
{
    frame head = {.kind = KIND_ROW, .row = number, .n_images = (uint32_t)packed->n_items};
    uint8_t *block = NULL, head_bytes[FRAME_BYTES];
    st_tensor tensors[ROW_TENSORS];
    st_meta meta[ROW_META];
    size_t n_tensors, block_size;
    status st = ST_OK;

    TRY(row_check(packed, "row to be sent"));
    head.image_bytes = (uint64_t)packed->n_patches * PATCH_BYTES +
                       (uint64_t)packed->n_video_patches * VIDEO_PATCH_BYTES;
    if (packed->n_items > FRAME_MAX_IMAGES || head.image_bytes > FRAME_MAX_PAYLOAD)
        return FAIL(
            ST_BAD_INPUT,
            "the row has %lld images and %llu bytes of pixels; at most %d and %d can be sent",
            (long long)packed->n_items, (unsigned long long)head.image_bytes, FRAME_MAX_IMAGES,
            FRAME_MAX_PAYLOAD);
    TRY(row_digest(packed, &head.digest));
    row_tensors(packed, 0, tensors, &n_tensors);
    TRY(st_pack(tensors, n_tensors, meta, row_meta(packed, meta), &block, &block_size));
    if (block_size > FRAME_MAX_PAYLOAD) {
        st = FAIL(ST_BAD_INPUT, "the row block has %zu bytes; at most %d can be sent", block_size,
                  FRAME_MAX_PAYLOAD);
        goto done;
    }
    head.block_bytes = block_size;
    frame_encode(&head, head_bytes);
    TRY_OR(done, wire_msg_add(out, head_bytes, sizeof head_bytes));
    TRY_OR(done, add_block(coder, block, block_size, out));
done:
    free(block);
    return st;
}

status codec_encode(codec *coder, const row *packed, uint64_t number, image_filter filter,
                    image_codec image, wire_msg *out)
{
    status st = add_front(coder, packed, number, out);
    if (st == ST_OK)
        st = add_images(coder, packed, filter, image, out);
    if (st != ST_OK)
        wire_msg_clear(out);
    return st;
}

status codec_item_room(wire_msg *items, size_t bytes, uint8_t **out_pixels)
{
    uint8_t *part;
    TRY(wire_msg_add_space(items, IMAGE_HEAD_BYTES + bytes, &part));
    *out_pixels = part + IMAGE_HEAD_BYTES;
    return ST_OK;
}

void codec_item_done(wire_msg *items, size_t index, bool is_video)
{
    const span part = wire_msg_part(items, index);
    uint8_t *head = (uint8_t *)(uintptr_t)part.data; /* not shared until it is sent */
    const size_t bytes = part.size - IMAGE_HEAD_BYTES;
    image_part image = {.patch_bytes = is_video ? VIDEO_PATCH_BYTES : PATCH_BYTES,
                        .decoded_bytes = bytes,
                        .payload = span_of(head + IMAGE_HEAD_BYTES, bytes)};
    image.n_patches = (uint32_t)(bytes / image.patch_bytes);
    check_pixels(&image, image.payload.data);
    image_part_head(&image, head);
}

/* Checks that the finished parts are those of the row's items. */
static status check_made(const row *packed, const wire_msg *items)
{
    if (!packed->items || (int64_t)wire_msg_parts(items) != packed->n_items)
        return FAIL(ST_INTERNAL, "there are %zu image parts for %lld items", wire_msg_parts(items),
                    (long long)packed->n_items);
    for (int64_t i = 0; i < packed->n_items; i++) {
        const image_part want = part_of(packed, i, packed->items[i].is_video);
        image_part image;
        TRY(image_part_parse(wire_msg_part(items, (size_t)i), "part made here", "item", &image));
        if (image.n_patches != want.n_patches || image.patch_bytes != want.patch_bytes)
            return FAIL(
                ST_INTERNAL, "image part %lld has %u patches of %u bytes, expected %u of %u",
                (long long)i, image.n_patches, image.patch_bytes, want.n_patches, want.patch_bytes);
    }
    return ST_OK;
}

status codec_encode_made(codec *coder, const row *packed, uint64_t number, wire_msg *items,
                         wire_msg *out)
{
    status st = add_front(coder, packed, number, out);
    if (st == ST_OK)
        st = check_made(packed, items);
    if (st == ST_OK)
        st = wire_msg_move(out, items);
    if (st != ST_OK)
        wire_msg_clear(out);
    return st;
}

/* Decompresses the block and reads its tensors. The arrays of *out are views into the decompressed
 * block, which lies in the arena. */
static status decode_block(codec *coder, span part, const frame *head, const char *peer,
                           arena *memory, row *out)
{
    uint8_t *block;
    st_file file;
    row packed;
    TRY(zstd_frames_check(part, head->block_bytes, peer, "row block"));
    TRY(arena_alloc(memory, head->block_bytes, (void **)&block));
    TRY(zstd_frames_open(coder->zstd_frames, part, block, head->block_bytes, peer, "row block"));
    TRY(st_parse(span_of(block, head->block_bytes), peer, &file));
    status st = row_from_tensors(&file, peer, 0, &packed);
    const char **const texts[] = {&packed.cursor, &packed.quarantine, &packed.references};
    for (size_t i = 0; i < sizeof texts / sizeof *texts && st == ST_OK; i++) {
        char *copy = NULL;
        st = arena_strndup(memory, *texts[i], strlen(*texts[i]), &copy);
        *texts[i] = copy;
    }
    st_close(&file);
    TRY(st);
    *out = packed;
    return ST_OK;
}

/* The first pass over the images: compares every head with its grid and with the header, before
 * memory is taken. */
static status check_images(const wire_msg *message, const frame *head, const char *peer,
                           row *packed, image_part *parts)
{
    uint64_t total = 0;
    int64_t patches[2] = {0, 0};
    if (packed->n_items != head->n_images)
        return FAIL_IN(ST_PROTOCOL, peer, "there are %u image parts for the %lld items of grid_thw",
                       head->n_images, (long long)packed->n_items);
    for (int64_t i = 0; i < packed->n_items; i++) {
        char what[WHAT];
        const int32_t *grid = packed->grid_thw + 3 * i;
        image_part *image = &parts[i];
        snprintf(what, sizeof what, "image part %lld", (long long)i);
        TRY(image_part_parse(wire_msg_part(message, FIRST_IMAGE + (size_t)i), peer, what, image));
        if (image->n_patches != (int64_t)grid[0] * grid[1] * grid[2])
            return FAIL_IN(ST_PROTOCOL, peer, "%s has %u patches for a grid of %d x %d x %d", what,
                           image->n_patches, grid[0], grid[1], grid[2]);
        if (image->codec == IMAGE_CODEC_ZSTD)
            TRY(zstd_frames_check(image->payload, image->decoded_bytes, peer, what));
        total += image->decoded_bytes;
        patches[image->patch_bytes == VIDEO_PATCH_BYTES] += image->n_patches;
    }
    if (total != head->image_bytes)
        return FAIL_IN(ST_PROTOCOL, peer, "the image parts hold %llu bytes, the header says %llu",
                       (unsigned long long)total, (unsigned long long)head->image_bytes);
    packed->n_patches = patches[0];
    packed->n_video_patches = patches[1];
    return ST_OK;
}

static status decode_image(codec *coder, const image_part *image, const char *peer,
                           const char *what, uint8_t *out)
{
    const uint8_t *bytes = image->payload.data;
    if (image->codec == IMAGE_CODEC_ZSTD) {
        uint8_t *to = out;
        if (image->filter != IMAGE_FILTER_NONE) {
            TRY(need_scratch(coder, image->decoded_bytes));
            to = coder->scratch;
        }
        TRY(zstd_frames_open(coder->zstd_frames, image->payload, to, image->decoded_bytes, peer,
                             what));
        bytes = to;
    }
    if (image->filter == IMAGE_FILTER_PLANE)
        filter_plane_undo(bytes, image->n_patches, (int)(image->patch_bytes / PATCH_BYTES), out);
    else if (bytes != out && image->decoded_bytes > 0)
        memcpy(out, bytes, image->decoded_bytes);
    hash128 check = hash_bytes(out, image->decoded_bytes);
    if (memcmp(check.bytes, image->check, IMAGE_CHECK_BYTES))
        return FAIL_IN(ST_PROTOCOL, peer, "%s: the pixels do not match the hash in its head", what);
    return ST_OK;
}

static status decode_images(codec *coder, const wire_msg *message, const frame *head,
                            const char *peer, arena *memory, row *packed)
{
    image_part *parts;
    uint8_t *at[2], *is_video;
    TRY(arena_calloc(memory, head->n_images, sizeof *parts, (void **)&parts));
    TRY(check_images(message, head, peer, packed, parts));
    TRY(arena_alloc(memory, (size_t)packed->n_patches * PATCH_BYTES, (void **)&packed->pixels));
    packed->pixels_video = NULL;
    if (packed->n_video_patches > 0)
        TRY(arena_alloc(memory, (size_t)packed->n_video_patches * VIDEO_PATCH_BYTES,
                        (void **)&packed->pixels_video));
    TRY(row_check(packed, peer));
    TRY(arena_alloc(memory, head->n_images, (void **)&is_video));
    TRY(row_find_videos(packed, peer, is_video));
    at[0] = packed->pixels;
    at[1] = packed->pixels_video;
    for (uint32_t i = 0; i < head->n_images; i++) {
        char what[WHAT];
        int video = parts[i].patch_bytes == VIDEO_PATCH_BYTES;
        snprintf(what, sizeof what, "image part %u", i);
        if (video != is_video[i])
            return FAIL_IN(ST_PROTOCOL, peer, "%s is %s, but by its token id the item is %s", what,
                           video ? "a video" : "an image", video ? "an image" : "a video");
        TRY(decode_image(coder, &parts[i], peer, what, at[video]));
        at[video] += parts[i].decoded_bytes;
    }
    return ST_OK;
}

static status decode_row(codec *coder, const wire_msg *message, const char *peer, arena *memory,
                         row *out, frame *out_head)
{
    frame head;
    row packed;
    hash128 digest;
    TRY(frame_decode(wire_msg_part(message, 0), peer, &head));
    if (head.kind != KIND_ROW)
        return FAIL_IN(ST_PROTOCOL, peer, "a message of kind %s came where a row was expected",
                       frame_kind_name(head.kind));
    const size_t tag = FIRST_IMAGE + (size_t)head.n_images; /* its part, if there is one */
    if (wire_msg_parts(message) != tag && wire_msg_parts(message) != tag + 1)
        return FAIL_IN(ST_PROTOCOL, peer,
                       "the row has %zu parts, but its header says 2, %u images and perhaps a tag",
                       wire_msg_parts(message), head.n_images);
    TRY(decode_block(coder, wire_msg_part(message, 1), &head, peer, memory, &packed));
    TRY(decode_images(coder, message, &head, peer, memory, &packed));
    TRY(row_digest(&packed, &digest));
    if (!hash_equal(digest, head.digest)) {
        char want[HASH_TEXT], got[HASH_TEXT];
        hash_print(head.digest, want);
        hash_print(digest, got);
        return FAIL_IN(ST_PROTOCOL, peer, "the row's digest is %s, but its header says %s", got,
                       want);
    }
    if (wire_msg_parts(message) > tag)
        TRY(tag_apply(wire_msg_part(message, tag), &head, peer, memory, &packed));
    *out = packed;
    if (out_head)
        *out_head = head;
    return ST_OK;
}

status codec_decode(codec *coder, const wire_msg *message, const char *peer, arena *memory,
                    row *out, frame *out_head)
{
    arena_mark before = arena_save(memory);
    status st = decode_row(coder, message, peer, memory, out, out_head);
    if (st == ST_OK)
        return ST_OK;
    arena_release(memory, before);
    if (st == ST_BAD_INPUT) { /* it is the peer that sent bad data */
        span head = wire_msg_part(message, 0);
        unsigned long long number = head.size >= FRAME_BYTES ? load_u64(head.data + 8) : 0;
        return status_context(ST_PROTOCOL, "row %llu", number);
    }
    return st;
}

status codec_measure(codec *coder, const wire_msg *message, const char *peer, arena *memory,
                     row_measure *out)
{
    frame head;
    row packed;
    TRY(frame_decode(wire_msg_part(message, 0), peer, &head));
    if (head.kind != KIND_ROW || wire_msg_parts(message) < FIRST_IMAGE)
        return FAIL_IN(ST_PROTOCOL, peer,
                       "a message of kind %s and %zu parts came where a row was expected",
                       frame_kind_name(head.kind), wire_msg_parts(message));
    TRY(decode_block(coder, wire_msg_part(message, 1), &head, peer, memory, &packed));
    row_measure measure = {.tokens = packed.n_tokens,
                           .patches = packed.n_patches + packed.n_video_patches};
    for (int64_t doc = 0; doc < packed.n_docs; doc++) {
        int64_t length = (int64_t)packed.cu_seqlens[doc + 1] - packed.cu_seqlens[doc];
        if (length < 0 || length > packed.n_tokens)
            return FAIL_IN(ST_PROTOCOL, peer, "a document has %lld of the row's %lld tokens",
                           (long long)length, (long long)packed.n_tokens);
        if (packed.doc_prefix && (packed.doc_prefix[doc] < -1 || packed.doc_prefix[doc] >= doc))
            return FAIL_IN(ST_PROTOCOL, peer,
                           "document %lld has the prefix %d, expected one before it",
                           (long long)doc, packed.doc_prefix[doc]);
    }
    measure.squares = row_squares(&packed);
    *out = measure;
    return ST_OK;
}
