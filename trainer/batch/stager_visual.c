/* stager_visual.c: the visual part of staging, as stager_visual.h describes it.
 *
 * In merge order the patches of an item run over (frame, block row, block column, row in block,
 * column in block), so that four consecutive patches make one merged row. */
#include "trainer/batch/stager_visual.h"

#include <math.h>
#include <string.h>

enum { MERGED = MERGE_SIDE * MERGE_SIDE, KIND_IMAGE = 1, KIND_VIDEO = 2, CORNERS = 4 };

static int64_t item_patches(const row *r, int64_t item)
{
    const int32_t *g = r->grid_thw + 3 * item;
    return (int64_t)g[0] * g[1] * g[2];
}

/* Finds the item that has merged row m, and its first merged row, from the item found last. Returns
 * n_items if m is beyond all items. */
static int64_t item_of(const row *r, int64_t m, int64_t *inout_item, int64_t *inout_first)
{
    if (m < *inout_first) { /* a later question shows an earlier picture: start again */
        *inout_item = 0;
        *inout_first = 0;
    }
    while (*inout_item < r->n_items) {
        int64_t rows = item_patches(r, *inout_item) / MERGED;
        if (m < *inout_first + rows)
            break;
        *inout_first += rows;
        ++*inout_item;
    }
    return *inout_item;
}

/* Writes text_index and visual_index of the row's tokens, and the kind of every item. */
static status map_tokens(visual_stage *stage, const row *r, int64_t token)
{
    device_batch *h = stage->host;
    int64_t item = 0, first = 0, last = -1;
    const item_place *place = stage->place + stage->items;
    int64_t merged = (r->n_patches + r->n_video_patches) / MERGED;
    for (int64_t doc = 0; doc < r->n_docs; doc++) {
        unsigned long long sample = r->doc_sample_id[doc];
        for (int64_t t = r->cu_seqlens[doc]; t < r->cu_seqlens[doc + 1]; t++) {
            int32_t id = r->input_ids[t], m = r->visual_row[t];
            bool image = stage->dims->vision.depth > 0 && id == stage->dims->image_token;
            bool video = stage->dims->vision.depth > 0 && id == stage->dims->video_token;
            if ((m >= 0) != (image || video) || m >= merged)
                return FAIL(ST_BAD_INPUT,
                            "sample %llu: token %lld of its document has id %d and visual row %d "
                            "(of %lld); exactly the image and video pads must have one",
                            sample, (long long)(t - r->cu_seqlens[doc]), id, m, (long long)merged);
            h->text_index[token + t] = m >= 0 ? -1 : id;
            h->visual_index[token + t] = -1;
            if (m < 0)
                continue;
            stage->distinct &= m > last; /* rows that only rise occur once */
            last = m > last ? m : last;
            int64_t i = item_of(r, m, &item, &first);
            h->visual_index[token + t] =
                (int32_t)(place[i].rank * stage->feature_rows + place[i].first + m - first);
            int32_t kind = image ? KIND_IMAGE : KIND_VIDEO;
            if (stage->kind[i] != 0 && stage->kind[i] != kind)
                return FAIL(ST_BAD_INPUT,
                            "sample %llu: visual item %lld has both image and video pads", sample,
                            (long long)i);
            stage->kind[i] = kind;
        }
    }
    return ST_OK;
}

/* Turns a patch of a still picture, [3, 16, 16], into [3, 2, 16, 16] with two equal frames. */
static void widen_patch(uint8_t *to, const uint8_t *from)
{
    enum { PLANE = PATCH_SIDE * PATCH_SIDE };
    for (int channel = 0; channel < 3; channel++) {
        memcpy(to + 2 * channel * PLANE, from + channel * PLANE, PLANE);
        memcpy(to + (2 * channel + 1) * PLANE, from + channel * PLANE, PLANE);
    }
}

static status copy_pixels(visual_stage *stage, const row *r)
{
    device_batch *h = stage->mine;
    int64_t still = 0, video = 0, at = stage->patches;
    for (int64_t i = 0; i < r->n_items; i++) {
        int64_t n = item_patches(r, i);
        bool is_video = stage->kind[i] == KIND_VIDEO;
        int64_t left = is_video ? r->n_video_patches - video : r->n_patches - still;
        if (stage->kind[i] == 0 || n > left)
            return FAIL(ST_BAD_INPUT,
                        "the row from sample %llu on: visual item %lld (%lld patches) %s",
                        r->n_docs > 0 ? (unsigned long long)r->doc_sample_id[0] : 0ull,
                        (long long)i, (long long)n,
                        stage->kind[i] == 0 ? "is shown by no token"
                                            : "has fewer pixels than its grid says");
        const bool mine = stage->place[stage->items + i].rank == stage->rank;
        if (!mine) {
            *(is_video ? &video : &still) += n;
            continue;
        }
        if (is_video) {
            memcpy(h->pixels_wide + at * VIDEO_PATCH_BYTES,
                   r->pixels_video + video * VIDEO_PATCH_BYTES, (size_t)(n * VIDEO_PATCH_BYTES));
            video += n;
        } else if (stage->wide) {
            for (int64_t p = 0; p < n; p++)
                widen_patch(h->pixels_wide + (at + p) * VIDEO_PATCH_BYTES,
                            r->pixels + (still + p) * PATCH_BYTES);
            still += n;
        } else {
            memcpy(h->pixels + at * PATCH_BYTES, r->pixels + still * PATCH_BYTES,
                   (size_t)(n * PATCH_BYTES));
            still += n;
        }
        at += n;
    }
    return ST_OK;
}

/* Where a coordinate falls on an axis of the position table: two indexes and a fraction. */
typedef struct axis {
    int32_t low, high;
    float fraction;
} axis;

/* Coordinate i of n on an axis of `side` entries with aligned corners: u = i (side - 1) / (n - 1).
 * It is rounded as by torch.linspace, which transformers 4.57 uses: a float32 step, counted from
 * the nearer end, one rounding. Rounding u otherwise changes a weight by up to 4e-6 on a table
 * of 48. */
static axis axis_of(int64_t i, int64_t n, int64_t side)
{
    const float last = (float)(side - 1), step = last / (float)(n > 1 ? n - 1 : 1);
    float u = i < n / 2 || n == 1 ? step * (float)i : fmaf(-step, (float)(n - 1 - i), last);
    int32_t low = (int32_t)u;
    return (axis){low, low + 1 < side ? low + 1 : low, u - (float)low};
}

static void put_weight(void *array, st_dtype acc, int64_t i, float w)
{
    if (acc == DT_F64)
        ((double *)array)[i] = w;
    else
        ((float *)array)[i] = w;
}

/* Writes coordinates, table rows and weights of patch p, which is at (y, x) of an h x w frame. */
static void put_patch(visual_stage *stage, int64_t p, int64_t y, int64_t x, int64_t h, int64_t w,
                      int64_t side)
{
    device_batch *b = stage->mine;
    b->patch_row_col[2 * p] = (int32_t)y;
    b->patch_row_col[2 * p + 1] = (int32_t)x;
    axis a = axis_of(y, h, side), c = axis_of(x, w, side);
    int32_t n = (int32_t)side;
    const int32_t index[CORNERS] = {a.low * n + c.low, a.low * n + c.high, a.high * n + c.low,
                                    a.high * n + c.high};
    const float weight[CORNERS] = {(1 - a.fraction) * (1 - c.fraction),
                                   (1 - a.fraction) * c.fraction, a.fraction * (1 - c.fraction),
                                   a.fraction * c.fraction};
    for (int q = 0; q < CORNERS; q++) {
        b->pos_index[CORNERS * p + q] = index[q];
        put_weight(b->pos_weight, stage->acc, CORNERS * p + q, weight[q]);
    }
}

static void put_item(visual_stage *stage, const int32_t *grid, int64_t side)
{
    int64_t h = grid[1], w = grid[2], p = stage->patches;
    for (int64_t frame = 0; frame < grid[0]; frame++) {
        for (int64_t by = 0; by < h; by += MERGE_SIDE)
            for (int64_t bx = 0; bx < w; bx += MERGE_SIDE)
                for (int64_t q = 0; q < MERGED; q++, p++)
                    put_patch(stage, p, by + q / MERGE_SIDE, bx + q % MERGE_SIDE, h, w, side);
        stage->frames++;
        stage->mine->cu_frames[stage->frames] = (int32_t)p;
    }
    stage->patches = p;
}

status stage_visual_check(const row *r, const model_dims *dims)
{
    int64_t patches = 0;
    for (int64_t i = 0; i < r->n_items; i++) {
        const int32_t *g = r->grid_thw + 3 * i;
        if (g[0] < 1 || g[1] < MERGE_SIDE || g[2] < MERGE_SIDE || g[1] % MERGE_SIDE ||
            g[2] % MERGE_SIDE)
            return FAIL(ST_BAD_INPUT,
                        "visual item %lld has a grid of %d x %d x %d patches; height and width "
                        "must be even",
                        (long long)i, g[0], g[1], g[2]);
        patches += item_patches(r, i);
    }
    if (patches != r->n_patches + r->n_video_patches)
        return FAIL(ST_BAD_INPUT, "the grids of a row have %lld patches, but its pixels are %lld",
                    (long long)patches, (long long)(r->n_patches + r->n_video_patches));
    if (patches > 0 && dims->vision.depth == 0)
        return FAIL(ST_BAD_INPUT, "sample %llu has images, but the model has no vision tower",
                    (unsigned long long)r->doc_sample_id[0]);
    return ST_OK;
}

status stage_visual_row(visual_stage *stage, const row *r, int64_t token)
{
    int64_t side = (int64_t)(sqrt((double)stage->dims->vision.positions) + 0.5);
    for (int64_t i = 0; i < r->n_items; i++)
        stage->kind[i] = 0;
    TRY(map_tokens(stage, r, token));
    TRY(copy_pixels(stage, r));
    for (int64_t i = 0; i < r->n_items; i++)
        if (stage->place[stage->items + i].rank == stage->rank)
            put_item(stage, r->grid_thw + 3 * i, side);
    stage->items += r->n_items;
    return ST_OK;
}
