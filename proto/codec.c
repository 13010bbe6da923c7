/* codec.c: turns rows into messages and back.
 *
 * Encoding checks the row, packs its tensors into a safetensors block, compresses that, and adds a
 * part for each item. Decoding goes the other way in two passes: the first compares every declared
 * size, the second allocates and decompresses. zstd is in zstd_frames.c, the filter in filter.c. */
#include "proto/codec.h"

#include <stdio.h>
#include <stdlib.h>

#include "proto/filter.h"
#include "proto/image_part.h"
#include "proto/zstd_frames.h"

enum {
    FIRST_IMAGE = 2, /* number of the first image part, after header and block */
    WHAT = 64,       /* bytes for the name of a part in errors */
};

struct codec {
    zstd_frames *zstd_frames;
    uint8_t *scratch; /* [capacity] filtered pixels */
    size_t capacity;
};

status codec_new(codec **out)
{
    codec *c = calloc(1, sizeof *c);
    if (!c)
        return FAIL(ST_NO_MEMORY, "no memory for a codec");
    status st = zstd_frames_new(&c->zstd_frames);
    if (st == ST_OK)
        *out = c;
    else
        codec_free(&c);
    return st;
}

void codec_free(codec **c)
{
    if (!c || !*c)
        return;
    zstd_frames_free(&(*c)->zstd_frames);
    free((*c)->scratch);
    free(*c);
    *c = NULL;
}

static status need_scratch(codec *c, size_t size)
{
    if (size <= c->capacity)
        return ST_OK;
    uint8_t *grown = realloc(c->scratch, size);
    if (!grown)
        return FAIL(ST_NO_MEMORY, "no memory for %zu bytes of pixels", size);
    c->scratch = grown;
    c->capacity = size;
    return ST_OK;
}

static status add_block(codec *c, const uint8_t *block, size_t size, wire_msg *out)
{
    span small;
    TRY(zstd_frames_compress(c->zstd_frames, span_of(block, size), 0, &small));
    return wire_msg_add(out, small.data, small.size);
}

static void check_pixels(image_part *p, const uint8_t *pixels)
{
    const hash128 check = hash_bytes(pixels, p->decoded_bytes);
    memcpy(p->check, check.bytes, IMAGE_CHECK_BYTES);
}

/* Filters and compresses the pixels of one item and appends them as a part: head, then payload. */
static status add_image(codec *c, const uint8_t *pixels, image_part *p, wire_msg *out)
{
    check_pixels(p, pixels);
    p->payload = span_of(pixels, p->decoded_bytes);
    if (p->filter == IMAGE_FILTER_PLANE) {
        TRY(need_scratch(c, p->decoded_bytes));
        filter_plane_apply(pixels, p->n_patches, (int)(p->patch_bytes / PATCH_BYTES), c->scratch);
        p->payload.data = c->scratch;
    }
    if (p->codec == IMAGE_CODEC_ZSTD)
        TRY(zstd_frames_compress(c->zstd_frames, p->payload, p->filter == IMAGE_FILTER_PLANE,
                                 &p->payload));
    uint8_t *to;
    TRY(wire_msg_add_space(out, IMAGE_HEAD_BYTES + p->payload.size, &to));
    image_part_head(p, to);
    if (p->payload.size > 0)
        memcpy(to + IMAGE_HEAD_BYTES, p->payload.data, p->payload.size);
    return ST_OK;
}

/* Describes item i as a part without its pixels. */
static image_part part_of(const row *r, int64_t i, bool is_video)
{
    const int32_t *g = r->grid_thw + 3 * i;
    image_part p = {.patch_bytes = is_video ? VIDEO_PATCH_BYTES : PATCH_BYTES,
                    .n_patches = (uint32_t)((int64_t)g[0] * g[1] * g[2])};
    p.decoded_bytes = (uint64_t)p.n_patches * p.patch_bytes;
    return p;
}

static status add_images(codec *c, const row *r, image_filter filter, image_codec image,
                         wire_msg *out)
{
    const uint8_t *images = r->pixels, *videos = r->pixels_video;
    uint8_t *is_video = malloc((size_t)r->n_items + 1);
    status st = ST_OK;
    if (!is_video)
        return FAIL(ST_NO_MEMORY, "no memory for the kinds of %lld items", (long long)r->n_items);
    TRY_OR(done, row_find_videos(r, "row to be sent", is_video));
    for (int64_t i = 0; i < r->n_items; i++) {
        image_part p = part_of(r, i, is_video[i]);
        const uint8_t **from = is_video[i] ? &videos : &images;
        p.filter = filter;
        p.codec = image;
        TRY_OR(done, add_image(c, r->items ? r->items[i].patches : *from, &p, out));
        if (!r->items)
            *from += p.decoded_bytes;
    }
done:
    free(is_video);
    return st;
}

/* Appends header and block, the parts before the images. */
static status add_front(codec *c, const row *r, uint64_t number, wire_msg *out)
{
    frame head = {.kind = KIND_ROW, .row = number, .n_images = (uint32_t)r->n_items};
    uint8_t *block = NULL, head_bytes[FRAME_BYTES];
    st_tensor tensors[ROW_TENSORS];
    st_meta meta[ROW_META];
    size_t n_tensors, block_size;
    status st = ST_OK;

    TRY(row_check(r, "row to be sent"));
    head.image_bytes =
        (uint64_t)r->n_patches * PATCH_BYTES + (uint64_t)r->n_video_patches * VIDEO_PATCH_BYTES;
    if (r->n_items > FRAME_MAX_IMAGES || head.image_bytes > FRAME_MAX_PAYLOAD)
        return FAIL(
            ST_BAD_INPUT,
            "the row has %lld images and %llu bytes of pixels; at most %d and %d can be sent",
            (long long)r->n_items, (unsigned long long)head.image_bytes, FRAME_MAX_IMAGES,
            FRAME_MAX_PAYLOAD);
    TRY(row_digest(r, &head.digest));
    row_tensors(r, 0, tensors, &n_tensors);
    TRY(st_pack(tensors, n_tensors, meta, row_meta(r, meta), &block, &block_size));
    if (block_size > FRAME_MAX_PAYLOAD) {
        st = FAIL(ST_BAD_INPUT, "the row block has %zu bytes; at most %d can be sent", block_size,
                  FRAME_MAX_PAYLOAD);
        goto done;
    }
    head.block_bytes = block_size;
    frame_encode(&head, head_bytes);
    TRY_OR(done, wire_msg_add(out, head_bytes, sizeof head_bytes));
    TRY_OR(done, add_block(c, block, block_size, out));
done:
    free(block);
    return st;
}

status codec_encode(codec *c, const row *r, uint64_t number, image_filter filter, image_codec image,
                    wire_msg *out)
{
    status st = add_front(c, r, number, out);
    if (st == ST_OK)
        st = add_images(c, r, filter, image, out);
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

void codec_item_done(wire_msg *items, size_t i, bool is_video)
{
    const span part = wire_msg_part(items, i);
    uint8_t *head = (uint8_t *)(uintptr_t)part.data; /* not shared until it is sent */
    const size_t bytes = part.size - IMAGE_HEAD_BYTES;
    image_part p = {.patch_bytes = is_video ? VIDEO_PATCH_BYTES : PATCH_BYTES,
                    .decoded_bytes = bytes,
                    .payload = span_of(head + IMAGE_HEAD_BYTES, bytes)};
    p.n_patches = (uint32_t)(bytes / p.patch_bytes);
    check_pixels(&p, p.payload.data);
    image_part_head(&p, head);
}

/* Checks that the finished parts are those of the row's items. */
static status check_made(const row *r, const wire_msg *items)
{
    if (!r->items || (int64_t)wire_msg_parts(items) != r->n_items)
        return FAIL(ST_INTERNAL, "there are %zu image parts for %lld items", wire_msg_parts(items),
                    (long long)r->n_items);
    for (int64_t i = 0; i < r->n_items; i++) {
        const image_part want = part_of(r, i, r->items[i].is_video);
        image_part p;
        TRY(image_part_parse(wire_msg_part(items, (size_t)i), "part made here", "item", &p));
        if (p.n_patches != want.n_patches || p.patch_bytes != want.patch_bytes)
            return FAIL(ST_INTERNAL,
                        "image part %lld has %u patches of %u bytes, expected %u of %u",
                        (long long)i, p.n_patches, p.patch_bytes, want.n_patches, want.patch_bytes);
    }
    return ST_OK;
}

status codec_encode_made(codec *c, const row *r, uint64_t number, wire_msg *items, wire_msg *out)
{
    status st = add_front(c, r, number, out);
    if (st == ST_OK)
        st = check_made(r, items);
    if (st == ST_OK)
        st = wire_msg_move(out, items);
    if (st != ST_OK)
        wire_msg_clear(out);
    return st;
}

/* Decompresses the block and reads its tensors. The arrays of *out are views into the decompressed
 * block, which lies in the arena. */
static status decode_block(codec *c, span part, const frame *head, const char *peer, arena *a,
                           row *out)
{
    uint8_t *block;
    st_file f;
    row r;
    char *cursor, *quarantine, *references;
    TRY(zstd_frames_check(part, head->block_bytes, peer, "row block"));
    TRY(arena_alloc(a, head->block_bytes, (void **)&block));
    TRY(zstd_frames_open(c->zstd_frames, part, block, head->block_bytes, peer, "row block"));
    TRY(st_parse(span_of(block, head->block_bytes), peer, &f));
    status st = row_from_tensors(&f, peer, 0, &r);
    if (st == ST_OK)
        st = arena_strndup(a, r.cursor, strlen(r.cursor), &cursor);
    if (st == ST_OK)
        st = arena_strndup(a, r.quarantine, strlen(r.quarantine), &quarantine);
    if (st == ST_OK)
        st = arena_strndup(a, r.references, strlen(r.references), &references);
    st_close(&f);
    TRY(st);
    r.cursor = cursor;
    r.quarantine = quarantine;
    r.references = references;
    *out = r;
    return ST_OK;
}

/* The first pass over the images: compares every head with its grid and with the header, before
 * memory is taken. */
static status check_images(const wire_msg *m, const frame *head, const char *peer, row *r,
                           image_part *parts)
{
    uint64_t total = 0;
    int64_t patches[2] = {0, 0};
    if (r->n_items != head->n_images)
        return FAIL_IN(ST_PROTOCOL, peer, "there are %u image parts for the %lld items of grid_thw",
                       head->n_images, (long long)r->n_items);
    for (int64_t i = 0; i < r->n_items; i++) {
        char what[WHAT];
        const int32_t *g = r->grid_thw + 3 * i;
        image_part *p = &parts[i];
        snprintf(what, sizeof what, "image part %lld", (long long)i);
        TRY(image_part_parse(wire_msg_part(m, FIRST_IMAGE + (size_t)i), peer, what, p));
        if (p->n_patches != (int64_t)g[0] * g[1] * g[2])
            return FAIL_IN(ST_PROTOCOL, peer, "%s has %u patches for a grid of %d x %d x %d", what,
                           p->n_patches, g[0], g[1], g[2]);
        if (p->codec == IMAGE_CODEC_ZSTD)
            TRY(zstd_frames_check(p->payload, p->decoded_bytes, peer, what));
        total += p->decoded_bytes;
        patches[p->patch_bytes == VIDEO_PATCH_BYTES] += p->n_patches;
    }
    if (total != head->image_bytes)
        return FAIL_IN(ST_PROTOCOL, peer, "the image parts hold %llu bytes, the header says %llu",
                       (unsigned long long)total, (unsigned long long)head->image_bytes);
    r->n_patches = patches[0];
    r->n_video_patches = patches[1];
    return ST_OK;
}

static status decode_image(codec *c, const image_part *p, const char *peer, const char *what,
                           uint8_t *out)
{
    const uint8_t *bytes = p->payload.data;
    if (p->codec == IMAGE_CODEC_ZSTD) {
        uint8_t *to = out;
        if (p->filter != IMAGE_FILTER_NONE) {
            TRY(need_scratch(c, p->decoded_bytes));
            to = c->scratch;
        }
        TRY(zstd_frames_open(c->zstd_frames, p->payload, to, p->decoded_bytes, peer, what));
        bytes = to;
    }
    if (p->filter == IMAGE_FILTER_PLANE)
        filter_plane_undo(bytes, p->n_patches, (int)(p->patch_bytes / PATCH_BYTES), out);
    else if (bytes != out && p->decoded_bytes > 0)
        memcpy(out, bytes, p->decoded_bytes);
    hash128 check = hash_bytes(out, p->decoded_bytes);
    if (memcmp(check.bytes, p->check, IMAGE_CHECK_BYTES))
        return FAIL_IN(ST_PROTOCOL, peer, "%s: the pixels do not match the hash in its head", what);
    return ST_OK;
}

static status decode_images(codec *c, const wire_msg *m, const frame *head, const char *peer,
                            arena *a, row *r)
{
    image_part *parts;
    uint8_t *at[2], *is_video;
    TRY(arena_calloc(a, head->n_images, sizeof *parts, (void **)&parts));
    TRY(check_images(m, head, peer, r, parts));
    TRY(arena_alloc(a, (size_t)r->n_patches * PATCH_BYTES, (void **)&r->pixels));
    r->pixels_video = NULL;
    if (r->n_video_patches > 0)
        TRY(arena_alloc(a, (size_t)r->n_video_patches * VIDEO_PATCH_BYTES,
                        (void **)&r->pixels_video));
    TRY(row_check(r, peer));
    TRY(arena_alloc(a, head->n_images, (void **)&is_video));
    TRY(row_find_videos(r, peer, is_video));
    at[0] = r->pixels;
    at[1] = r->pixels_video;
    for (uint32_t i = 0; i < head->n_images; i++) {
        char what[WHAT];
        int video = parts[i].patch_bytes == VIDEO_PATCH_BYTES;
        snprintf(what, sizeof what, "image part %u", i);
        if (video != is_video[i])
            return FAIL_IN(ST_PROTOCOL, peer, "%s is %s, but by its token id the item is %s", what,
                           video ? "a video" : "an image", video ? "an image" : "a video");
        TRY(decode_image(c, &parts[i], peer, what, at[video]));
        at[video] += parts[i].decoded_bytes;
    }
    return ST_OK;
}

static status decode_row(codec *c, const wire_msg *m, const char *peer, arena *a, row *out,
                         frame *out_head)
{
    frame head;
    row r;
    hash128 digest;
    TRY(frame_decode(wire_msg_part(m, 0), peer, &head));
    if (head.kind != KIND_ROW)
        return FAIL_IN(ST_PROTOCOL, peer, "a message of kind %s came where a row was expected",
                       frame_kind_name(head.kind));
    if (wire_msg_parts(m) != FIRST_IMAGE + (size_t)head.n_images)
        return FAIL_IN(ST_PROTOCOL, peer,
                       "the row has %zu parts, but its header says 2 and %u images",
                       wire_msg_parts(m), head.n_images);
    TRY(decode_block(c, wire_msg_part(m, 1), &head, peer, a, &r));
    TRY(decode_images(c, m, &head, peer, a, &r));
    TRY(row_digest(&r, &digest));
    if (!hash_equal(digest, head.digest)) {
        char want[HASH_TEXT], got[HASH_TEXT];
        hash_print(head.digest, want);
        hash_print(digest, got);
        return FAIL_IN(ST_PROTOCOL, peer, "the row's digest is %s, but its header says %s", got,
                       want);
    }
    *out = r;
    if (out_head)
        *out_head = head;
    return ST_OK;
}

status codec_decode(codec *c, const wire_msg *m, const char *peer, arena *a, row *out,
                    frame *out_head)
{
    arena_mark before = arena_save(a);
    status st = decode_row(c, m, peer, a, out, out_head);
    if (st == ST_OK)
        return ST_OK;
    arena_release(a, before);
    if (st == ST_BAD_INPUT) { /* it is the peer that sent bad data */
        span head = wire_msg_part(m, 0);
        unsigned long long number = head.size >= FRAME_BYTES ? load_u64(head.data + 8) : 0;
        return status_context(ST_PROTOCOL, "row %llu", number);
    }
    return st;
}

status codec_measure(codec *c, const wire_msg *m, const char *peer, arena *a, row_measure *out)
{
    frame head;
    row r;
    TRY(frame_decode(wire_msg_part(m, 0), peer, &head));
    if (head.kind != KIND_ROW || wire_msg_parts(m) < FIRST_IMAGE)
        return FAIL_IN(ST_PROTOCOL, peer,
                       "a message of kind %s and %zu parts came where a row was expected",
                       frame_kind_name(head.kind), wire_msg_parts(m));
    TRY(decode_block(c, wire_msg_part(m, 1), &head, peer, a, &r));
    row_measure measure = {.tokens = r.n_tokens, .patches = r.n_patches + r.n_video_patches};
    for (int64_t d = 0; d < r.n_docs; d++) {
        int64_t length = (int64_t)r.cu_seqlens[d + 1] - r.cu_seqlens[d];
        if (length < 0 || length > r.n_tokens)
            return FAIL_IN(ST_PROTOCOL, peer, "a document has %lld of the row's %lld tokens",
                           (long long)length, (long long)r.n_tokens);
        if (r.doc_prefix && (r.doc_prefix[d] < -1 || r.doc_prefix[d] >= d))
            return FAIL_IN(ST_PROTOCOL, peer,
                           "document %lld has the prefix %d, expected one before it", (long long)d,
                           r.doc_prefix[d]);
    }
    measure.squares = row_squares(&r);
    *out = measure;
    return ST_OK;
}
