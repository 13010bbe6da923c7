/* SPDX-License-Identifier: Apache-2.0 */
/* row_compare.c: see row_compare.h. */
#include "prepd/worker/row_compare.h"

#include <string.h>

static const char SOURCE[] = "lease", THEIRS[] = "row to be compared";
enum {
    FIRST_ROWS = 2,         /* a lease's header and JSON come before */
    MOST_PARTS = 2 + 65536, /* of a row: header, block and FRAME_MAX_IMAGES items */
    MORE_BLOCK = 1 << 20,   /* bytes by which their block may be larger than ours */
};

status row_compare_read(const json_value *lease, const wire_msg *message, compared_rows *out)
{
    const json_value *list = json_find(lease, "compare");
    compared_rows rows = {.count = (int)json_count(list)};
    size_t at = wire_msg_parts(message);
    if (json_count(list) > MOST_COMPARED)
        return FAIL_IN(ST_PROTOCOL, SOURCE, "%zu rows are to be compared, expected at most %d",
                       json_count(list), MOST_COMPARED);
    for (int i = rows.count - 1; i >= 0; i--) { /* they are the last parts, in order */
        const int64_t parts = json_int(json_item(list, (size_t)i), -1);
        if (parts < 0 || parts > MOST_PARTS || (size_t)parts + FIRST_ROWS > at)
            return FAIL_IN(ST_PROTOCOL, SOURCE,
                           "row %d to be compared has %lld parts in a message of %zu", i,
                           (long long)parts, wire_msg_parts(message));
        at -= (size_t)parts;
        rows.first[i] = at;
        rows.n_parts[i] = (size_t)parts;
    }
    *out = rows;
    return ST_OK;
}

/* Whether the headers allow the rows to be equal. Memory for theirs is bounded by this. */
static bool may_be_same(const wire_msg *encoded, const wire_msg *theirs)
{
    frame ours, head;
    return frame_decode(wire_msg_part(encoded, 0), THEIRS, &ours) == ST_OK &&
           frame_decode(wire_msg_part(theirs, 0), THEIRS, &head) == ST_OK &&
           head.kind == KIND_ROW && head.n_images == ours.n_images &&
           wire_msg_parts(theirs) == 2 + (size_t)head.n_images &&
           head.image_bytes == ours.image_bytes &&
           head.block_bytes <= ours.block_bytes + MORE_BLOCK;
}

static bool same_tensor(const st_tensor *ours, const st_tensor *theirs)
{
    bool same = strcmp(ours->name, theirs->name) == 0 && ours->dtype == theirs->dtype &&
                ours->n_dims == theirs->n_dims && ours->data.size == theirs->data.size;
    for (int i = 0; same && i < ours->n_dims; i++)
        same = ours->shape[i] == theirs->shape[i];
    return same && (ours->data.size == 0 ||
                    memcmp(ours->data.data, theirs->data.data, ours->data.size) == 0);
}

static bool same_tensors(const row *made, const row *theirs)
{
    st_tensor ours[ROW_TENSORS], others[ROW_TENSORS];
    size_t count, n_others;
    row_tensors(made, 0, ours, &count);
    row_tensors(theirs, 0, others, &n_others);
    bool same = count == n_others;
    for (size_t i = 0; same && i < count; i++)
        same = same_tensor(&ours[i], &others[i]);
    return same;
}

/* The tensors are the same, so every item has the same grid in both. */
static bool same_pixels(const row *made, const row *theirs)
{
    const uint8_t *images = theirs->pixels, *videos = theirs->pixels_video;
    bool same =
        made->n_patches == theirs->n_patches && made->n_video_patches == theirs->n_video_patches;
    for (int64_t i = 0; same && i < made->n_items; i++) {
        const int32_t *grid = made->grid_thw + 3 * i;
        const bool is_video = made->items[i].is_video;
        const uint8_t **at = is_video ? &videos : &images;
        const size_t bytes = (size_t)grid[0] * (size_t)grid[1] * (size_t)grid[2] *
                             (is_video ? VIDEO_PATCH_BYTES : PATCH_BYTES);
        same = memcmp(made->items[i].patches, *at, bytes) == 0;
        *at += bytes;
    }
    return same;
}

status row_compare(codec *coder, const row *made, const wire_msg *encoded, const wire_msg *message,
                   const compared_rows *rows, int index, arena *memory, bool *out_same)
{
    wire_msg *theirs = NULL;
    row decoded;
    status st;
    *out_same = false;
    TRY(wire_msg_new(&theirs));
    const arena_mark before = arena_save(memory);
    st = wire_msg_share_some(theirs, message, rows->first[index], rows->n_parts[index]);
    if (st == ST_OK && may_be_same(encoded, theirs)) {
        st = codec_decode(coder, theirs, THEIRS, memory, &decoded, NULL);
        if (st == ST_OK)
            *out_same = same_tensors(made, &decoded) && same_pixels(made, &decoded);
        else if (st == ST_PROTOCOL)
            st = ST_OK; /* it cannot be decoded */
    }
    arena_release(memory, before);
    wire_msg_free(&theirs);
    return st;
}
