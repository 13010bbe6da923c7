/* SPDX-License-Identifier: Apache-2.0 */
/* stager_visual.c: the visual part of staging, as stager_visual.h describes it.
 *
 * In merge order the patches of an item run over (frame, block row, block column, row in block,
 * column in block), so that four consecutive patches make one merged row. */
#include "trainer/batch/stager_visual.h"

#include <math.h>
#include <string.h>

enum { MERGED = MERGE_SIDE * MERGE_SIDE, KIND_IMAGE = 1, KIND_VIDEO = 2, CORNERS = 4 };

static int64_t item_patches(const row *packed, int64_t item)
{
    const int32_t *grid = packed->grid_thw + 3 * item;
    return (int64_t)grid[0] * grid[1] * grid[2];
}

/* Finds the item that has merged row `feature`, and its first merged row, from the item found last.
 * Returns n_items if `feature` is beyond all items. */
static int64_t item_of(const row *packed, int64_t feature, int64_t *inout_item,
                       int64_t *inout_first)
{
    if (feature < *inout_first) { /* a later question shows an earlier picture: start again */
        *inout_item = 0;
        *inout_first = 0;
    }
    while (*inout_item < packed->n_items) {
        int64_t rows = item_patches(packed, *inout_item) / MERGED;
        if (feature < *inout_first + rows)
            break;
        *inout_first += rows;
        ++*inout_item;
    }
    return *inout_item;
}

/* Writes text_index and visual_index of the row's tokens, and the kind of every item. */
static status map_tokens(visual_stage *stage, const row *packed, int64_t first_token)
{
    device_batch *host = stage->host;
    int64_t item = 0, first = 0;
    const item_place *place = stage->place + stage->items;
    int64_t merged = (packed->n_patches + packed->n_video_patches) / MERGED;
    for (int64_t doc = 0; doc < packed->n_docs; doc++) {
        unsigned long long sample = packed->doc_sample_id[doc];
        for (int64_t token = packed->cu_seqlens[doc]; token < packed->cu_seqlens[doc + 1];
             token++) {
            int32_t id = packed->input_ids[token], visual_row = packed->visual_row[token];
            bool image = stage->dims->vision.depth > 0 && id == stage->dims->image_token;
            bool video = stage->dims->vision.depth > 0 && id == stage->dims->video_token;
            if ((visual_row >= 0) != (image || video) || visual_row >= merged)
                return FAIL(ST_BAD_INPUT,
                            "sample %llu: token %lld of its document has id %d and visual row %d "
                            "(of %lld); exactly the image and video pads must have one",
                            sample, (long long)(token - packed->cu_seqlens[doc]), id, visual_row,
                            (long long)merged);
            host->text_index[first_token + token] = visual_row >= 0 ? -1 : id;
            host->visual_index[first_token + token] = -1;
            if (visual_row < 0)
                continue;
            int64_t i = item_of(packed, visual_row, &item, &first);
            host->visual_index[first_token + token] =
                (int32_t)(place[i].rank * stage->feature_rows + place[i].first + visual_row -
                          first);
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

static status copy_pixels(visual_stage *stage, const row *packed)
{
    device_batch *host = stage->mine;
    int64_t still = 0, video = 0, at = stage->patches;
    for (int64_t i = 0; i < packed->n_items; i++) {
        int64_t count = item_patches(packed, i);
        bool is_video = stage->kind[i] == KIND_VIDEO;
        int64_t left = is_video ? packed->n_video_patches - video : packed->n_patches - still;
        if (stage->kind[i] == 0 || count > left)
            return FAIL(ST_BAD_INPUT,
                        "the row from sample %llu on: visual item %lld (%lld patches) %s",
                        packed->n_docs > 0 ? (unsigned long long)packed->doc_sample_id[0] : 0ull,
                        (long long)i, (long long)count,
                        stage->kind[i] == 0 ? "is shown by no token"
                                            : "has fewer pixels than its grid says");
        const bool mine = stage->place[stage->items + i].rank == stage->rank;
        if (!mine) {
            *(is_video ? &video : &still) += count;
            continue;
        }
        if (is_video) {
            memcpy(host->pixels_wide + at * VIDEO_PATCH_BYTES,
                   packed->pixels_video + video * VIDEO_PATCH_BYTES,
                   (size_t)(count * VIDEO_PATCH_BYTES));
            video += count;
        } else if (stage->wide) {
            for (int64_t j = 0; j < count; j++)
                widen_patch(host->pixels_wide + (at + j) * VIDEO_PATCH_BYTES,
                            packed->pixels + (still + j) * PATCH_BYTES);
            still += count;
        } else {
            memcpy(host->pixels + at * PATCH_BYTES, packed->pixels + still * PATCH_BYTES,
                   (size_t)(count * PATCH_BYTES));
            still += count;
        }
        at += count;
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
 * of 48. Letters: i, n, u as in the formula. */
static axis axis_of(int64_t i, int64_t n, int64_t side)
{
    const float last = (float)(side - 1), step = last / (float)(n > 1 ? n - 1 : 1);
    float u = i < n / 2 || n == 1 ? step * (float)i : fmaf(-step, (float)(n - 1 - i), last);
    int32_t low = (int32_t)u;
    return (axis){low, low + 1 < side ? low + 1 : low, u - (float)low};
}

static void put_weight(void *array, st_dtype acc, int64_t index, float weight)
{
    if (acc == DT_F64)
        ((double *)array)[index] = weight;
    else
        ((float *)array)[index] = weight;
}

/* Writes coordinates, table rows and weights of `patch`, which is at (patch_row, column) of a
 * height x width frame. */
static void put_patch(visual_stage *stage, int64_t patch, int64_t patch_row, int64_t column,
                      int64_t height, int64_t width, int64_t side)
{
    device_batch *batch = stage->mine;
    batch->patch_row_col[2 * patch] = (int32_t)patch_row;
    batch->patch_row_col[2 * patch + 1] = (int32_t)column;
    axis down = axis_of(patch_row, height, side), across = axis_of(column, width, side);
    int32_t count = (int32_t)side;
    const int32_t index[CORNERS] = {down.low * count + across.low, down.low * count + across.high,
                                    down.high * count + across.low,
                                    down.high * count + across.high};
    const float weight[CORNERS] = {
        (1 - down.fraction) * (1 - across.fraction), (1 - down.fraction) * across.fraction,
        down.fraction * (1 - across.fraction), down.fraction * across.fraction};
    for (int i = 0; i < CORNERS; i++) {
        batch->pos_index[CORNERS * patch + i] = index[i];
        put_weight(batch->pos_weight, stage->acc, CORNERS * patch + i, weight[i]);
    }
}

static void put_item(visual_stage *stage, const int32_t *grid, int64_t side)
{
    int64_t height = grid[1], width = grid[2], patch = stage->patches;
    for (int64_t frame = 0; frame < grid[0]; frame++) {
        for (int64_t by = 0; by < height; by += MERGE_SIDE)
            for (int64_t bx = 0; bx < width; bx += MERGE_SIDE)
                for (int64_t i = 0; i < MERGED; i++, patch++)
                    put_patch(stage, patch, by + i / MERGE_SIDE, bx + i % MERGE_SIDE, height, width,
                              side);
        stage->frames++;
        stage->mine->cu_frames[stage->frames] = (int32_t)patch;
    }
    stage->patches = patch;
}

status stage_visual_check(const row *packed, const model_dims *dims)
{
    int64_t patches = 0;
    for (int64_t i = 0; i < packed->n_items; i++) {
        const int32_t *grid = packed->grid_thw + 3 * i;
        if (grid[0] < 1 || grid[1] < MERGE_SIDE || grid[2] < MERGE_SIDE || grid[1] % MERGE_SIDE ||
            grid[2] % MERGE_SIDE)
            return FAIL(ST_BAD_INPUT,
                        "visual item %lld has a grid of %d x %d x %d patches; height and width "
                        "must be even",
                        (long long)i, grid[0], grid[1], grid[2]);
        patches += item_patches(packed, i);
    }
    if (patches != packed->n_patches + packed->n_video_patches)
        return FAIL(ST_BAD_INPUT, "the grids of a row have %lld patches, but its pixels are %lld",
                    (long long)patches, (long long)(packed->n_patches + packed->n_video_patches));
    if (patches > 0 && dims->vision.depth == 0)
        return FAIL(ST_BAD_INPUT, "sample %llu has images, but the model has no vision tower",
                    (unsigned long long)packed->doc_sample_id[0]);
    return ST_OK;
}

status stage_visual_row(visual_stage *stage, const row *packed, int64_t token)
{
    int64_t side = (int64_t)(sqrt((double)stage->dims->vision.positions) + 0.5);
    for (int64_t i = 0; i < packed->n_items; i++)
        stage->kind[i] = 0;
    TRY(map_tokens(stage, packed, token));
    TRY(copy_pixels(stage, packed));
    for (int64_t i = 0; i < packed->n_items; i++)
        if (stage->place[stage->items + i].rank == stage->rank)
            put_item(stage, packed->grid_thw + 3 * i, side);
    stage->items += packed->n_items;
    return ST_OK;
}
