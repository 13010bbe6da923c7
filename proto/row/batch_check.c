/* SPDX-License-Identifier: Apache-2.0 */
/* batch_check.c: row_check, which checks everything that a trainer relies on in a row.
 *
 * The checks run in an order in which each may rely on those before it: counts, documents, tokens,
 * grids, pixels, and last visual_row, which ties tokens to items. */
#include "proto/row/batch.h"

#include <math.h>

/* Most patches along a side of a grid, and most frames: their product fits well into an int64. */
enum { GRID_MAX = 65536 };

/* Patches of `item`, whose grid has been checked. */
static int64_t item_patches(const row *packed, int64_t item)
{
    const int32_t *grid = packed->grid_thw + 3 * item;
    return (int64_t)grid[0] * grid[1] * grid[2];
}

status row_check_counts(const row *packed, const char *source)
{
    const int64_t counts[] = {packed->n_tokens, packed->n_docs, packed->n_items, packed->n_patches,
                              packed->n_video_patches};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        if (counts[i] < 0 || counts[i] > INT32_MAX)
            return FAIL_IN(ST_BAD_INPUT, source, "count %zu of a row is %lld, expected 0 to %d", i,
                           (long long)counts[i], INT32_MAX);
    if (packed->n_patches + packed->n_video_patches > INT32_MAX)
        return FAIL_IN(ST_BAD_INPUT, source, "%lld patches in a row, expected at most %d",
                       (long long)(packed->n_patches + packed->n_video_patches), INT32_MAX);
    return ST_OK;
}

static status check_documents(const row *packed, const char *source)
{
    if (packed->cu_seqlens[0] != 0 || packed->cu_seqlens[packed->n_docs] != packed->n_tokens)
        return FAIL_IN(ST_BAD_INPUT, source, "cu_seqlens runs from %d to %d, expected 0 to %lld",
                       packed->cu_seqlens[0], packed->cu_seqlens[packed->n_docs],
                       (long long)packed->n_tokens);
    for (int64_t doc = 0; doc < packed->n_docs; doc++) {
        int32_t from = packed->cu_seqlens[doc], to = packed->cu_seqlens[doc + 1];
        if (to <= from || to > packed->n_tokens)
            return FAIL_IN(ST_BAD_INPUT, source,
                           "document %lld runs from token %d to %d, expected rising borders within "
                           "%lld tokens",
                           (long long)doc, from, to, (long long)packed->n_tokens);
        if (packed->labels[from] != NO_LABEL)
            return FAIL_IN(
                ST_BAD_INPUT, source,
                "the first token of document %lld has label %d, expected %d: no token precedes "
                "it that could predict it",
                (long long)doc, packed->labels[from], NO_LABEL);
        if (packed->doc_part[doc] < (packed->doc_prefix ? -1 : 0))
            return FAIL_IN(ST_BAD_INPUT, source, "doc_part[%lld] is %d, expected 0 or more",
                           (long long)doc, packed->doc_part[doc]);
    }
    return ST_OK;
}

/* Checks that document `at` is a prefix, whose branches are the documents [at + 1, end). */
static status check_prefix(const row *packed, const char *source, int64_t at, int64_t end)
{
    if (packed->doc_prefix[at] != -1 || packed->doc_part[at] != -1 || end - at < 3)
        return FAIL_IN(
            ST_BAD_INPUT, source,
            "document %lld is a prefix with doc_prefix %d, doc_part %d and %lld branches, "
            "expected -1, -1 and two or more",
            (long long)at, packed->doc_prefix[at], packed->doc_part[at], (long long)(end - at - 1));
    if (packed->doc_sample_id[at] != packed->doc_sample_id[at + 1])
        return FAIL_IN(ST_BAD_INPUT, source,
                       "doc_sample_id[%lld] is %llu, expected %llu, that of the prefix's first "
                       "branch",
                       (long long)at, (unsigned long long)packed->doc_sample_id[at],
                       (unsigned long long)packed->doc_sample_id[at + 1]);
    for (int64_t cu_seqlen = packed->cu_seqlens[at]; cu_seqlen < packed->cu_seqlens[at + 1];
         cu_seqlen++)
        if (packed->labels[cu_seqlen] != NO_LABEL ||
            (packed->loss_weight && packed->loss_weight[cu_seqlen] != 1))
            return FAIL_IN(ST_BAD_INPUT, source,
                           "token %lld of the prefix at document %lld has label %d and weight %g, "
                           "expected %d and 1",
                           (long long)cu_seqlen, (long long)at, packed->labels[cu_seqlen],
                           packed->loss_weight ? (double)packed->loss_weight[cu_seqlen] : 1.0,
                           NO_LABEL);
    return ST_OK;
}

static status check_prefixes(const row *packed, const char *source)
{
    int64_t prefixes = 0, end;
    for (int64_t doc = 0; packed->doc_prefix && doc < packed->n_docs; doc = end) {
        for (end = doc + 1; end < packed->n_docs && packed->doc_prefix[end] == doc;)
            if (packed->doc_part[end++] != 0)
                return FAIL_IN(ST_BAD_INPUT, source, "doc_part[%lld] is %d, expected 0 of a branch",
                               (long long)(end - 1), packed->doc_part[end - 1]);
        if (packed->doc_prefix[doc] != -1)
            return FAIL_IN(ST_BAD_INPUT, source,
                           "doc_prefix[%lld] is %d, expected -1 or a prefix directly before it and "
                           "its other branches",
                           (long long)doc, packed->doc_prefix[doc]);
        if (end == doc + 1 && packed->doc_part[doc] != -1)
            continue;
        TRY(check_prefix(packed, source, doc, end));
        prefixes++;
    }
    if (packed->doc_prefix && prefixes == 0)
        return FAIL_IN(ST_BAD_INPUT, source,
                       "doc_prefix names no prefix, expected none to be there");
    return ST_OK;
}

static status check_tokens(const row *packed, const char *source)
{
    int64_t n_tokens = packed->n_tokens;
    for (int64_t j = 0; j < n_tokens; j++) {
        if (packed->input_ids[j] < 0)
            return FAIL_IN(ST_BAD_INPUT, source, "input_ids[%lld] is %d, expected 0 or more",
                           (long long)j, packed->input_ids[j]);
        if (packed->labels[j] < 0 && packed->labels[j] != NO_LABEL)
            return FAIL_IN(ST_BAD_INPUT, source, "labels[%lld] is %d, expected %d or a token id",
                           (long long)j, packed->labels[j], NO_LABEL);
        if (packed->loss_weight &&
            !(isfinite(packed->loss_weight[j]) && packed->loss_weight[j] >= 0))
            return FAIL_IN(ST_BAD_INPUT, source,
                           "loss_weight[%lld] is %g, expected finite and not negative",
                           (long long)j, (double)packed->loss_weight[j]);
    }
    for (int64_t i = 0; i < 3 * n_tokens; i++)
        if (packed->position_ids[i] < 0)
            return FAIL_IN(
                ST_BAD_INPUT, source, "position_ids[%lld, %lld] is %d, expected 0 or more",
                (long long)(i / n_tokens), (long long)(i % n_tokens), packed->position_ids[i]);
    return ST_OK;
}

/* Patches of all items together, whose grids have been checked. */
static int64_t total_patches(const row *packed)
{
    int64_t total = 0;
    for (int64_t i = 0; i < packed->n_items; i++)
        total += item_patches(packed, i);
    return total;
}

status row_check_grids(const row *packed, const char *source)
{
    int64_t total = 0;
    for (int64_t i = 0; i < packed->n_items; i++) {
        const int32_t *grid = packed->grid_thw + 3 * i;
        if (grid[0] < 1 || grid[1] < 1 || grid[2] < 1 || grid[0] > GRID_MAX || grid[1] > GRID_MAX ||
            grid[2] > GRID_MAX || grid[1] % MERGE_SIDE || grid[2] % MERGE_SIDE)
            return FAIL_IN(
                ST_BAD_INPUT, source,
                "grid_thw[%lld] is %d x %d x %d, expected 1 to %d, height and width even",
                (long long)i, grid[0], grid[1], grid[2], GRID_MAX);
        total += item_patches(packed, i);
        if (total > INT32_MAX)
            return FAIL_IN(ST_BAD_INPUT, source, "grid_thw sums to over %d patches", INT32_MAX);
    }
    return ST_OK;
}

static status check_pixels(const row *packed, const char *source)
{
    int64_t total = total_patches(packed);
    if (total != packed->n_patches + packed->n_video_patches)
        return FAIL_IN(
            ST_BAD_INPUT, source,
            "grid_thw sums to %lld patches, the row has %lld of images and %lld of videos",
            (long long)total, (long long)packed->n_patches, (long long)packed->n_video_patches);
    return ST_OK;
}

/* The state of a walk over visual_row. */
typedef struct visual_walk {
    int64_t item;      /* the item being read; -1 between items */
    int32_t next, end; /* its next merged row and the one after its last */
    int32_t id;        /* its token id */
    int64_t n_seen;    /* items met so far */
} visual_walk;

/* Finds the item *out whose first merged row `token` shows. Most items are new, so the next unseen
 * one is tried first; only an item that an earlier document shows needs a search. */
static status find_item(const row *packed, const char *source, int64_t token, int64_t n_seen,
                        int64_t seen_rows, int64_t *out)
{
    int64_t merged = packed->visual_row[token], start = 0;
    if (merged == seen_rows && n_seen < packed->n_items) {
        *out = n_seen;
        return ST_OK;
    }
    for (int64_t i = 0; i < n_seen; i++) {
        if (start == merged) {
            *out = i;
            return ST_OK;
        }
        start += item_patches(packed, i) / (MERGE_SIDE * MERGE_SIDE);
    }
    return FAIL_IN(ST_BAD_INPUT, source,
                   "visual_row[%lld] is %lld, expected the first row of an item (the next new item "
                   "begins at row %lld)",
                   (long long)token, (long long)merged, (long long)seen_rows);
}

/* Checks that every visual token begins an item or continues one, that items end inside the
 * document they began in, and that new items come in the order of grid_thw with none left out. */
static status check_visual(const row *packed, const char *source)
{
    visual_walk walk = {.item = -1};
    int64_t seen_rows = 0, doc = 0;
    for (int64_t token = 0; token < packed->n_tokens; token++) {
        if (token == packed->cu_seqlens[doc + 1]) {
            doc++;
            if (walk.item >= 0)
                return FAIL_IN(ST_BAD_INPUT, source,
                               "item %lld is cut by the end of document %lld at token %lld",
                               (long long)walk.item, (long long)(doc - 1), (long long)token);
        }
        int32_t visual_row = packed->visual_row[token];
        if (visual_row == -1)
            continue;
        if (walk.item < 0) {
            TRY(find_item(packed, source, token, walk.n_seen, seen_rows, &walk.item));
            int32_t rows = (int32_t)(item_patches(packed, walk.item) / (MERGE_SIDE * MERGE_SIDE));
            walk.next = visual_row;
            walk.end = visual_row + rows;
            walk.id = packed->input_ids[token];
            if (walk.item == walk.n_seen) {
                walk.n_seen++;
                seen_rows += rows;
            }
        }
        if (visual_row != walk.next || packed->input_ids[token] != walk.id)
            return FAIL_IN(ST_BAD_INPUT, source,
                           "visual_row[%lld] is %d with token id %d, expected row %d of item %lld "
                           "with id %d",
                           (long long)token, visual_row, packed->input_ids[token], walk.next,
                           (long long)walk.item, walk.id);
        if (++walk.next == walk.end)
            walk.item = -1;
    }
    if (walk.item >= 0)
        return FAIL_IN(ST_BAD_INPUT, source, "item %lld is cut by the end of the row",
                       (long long)walk.item);
    if (walk.n_seen != packed->n_items)
        return FAIL_IN(ST_BAD_INPUT, source, "item %lld of %lld has no tokens",
                       (long long)walk.n_seen, (long long)packed->n_items);
    return ST_OK;
}

/* The items that share one token id: all their patches, and whether one has several frames. */
typedef struct id_class {
    int32_t id;
    int64_t patches;
    bool has_frames;
} id_class;

/* Sorts the items into at most two classes by token id. class_of [I] u8, or NULL. */
static status classify(const row *packed, const char *source, id_class sort[2], int *out_n,
                       uint8_t *class_of)
{
    int count = 0;
    int64_t item = 0, start = 0;
    for (int64_t token = 0; token < packed->n_tokens && item < packed->n_items; token++) {
        if (packed->visual_row[token] != start)
            continue;
        int32_t id = packed->input_ids[token];
        int k = 0;
        while (k < count && sort[k].id != id)
            k++;
        if (k == 2)
            return FAIL_IN(ST_BAD_INPUT, source,
                           "items have the token ids %d, %d and %d, expected one for images and "
                           "one for videos",
                           sort[0].id, sort[1].id, id);
        if (k == count)
            sort[count++] = (id_class){.id = id};
        sort[k].patches += item_patches(packed, item);
        sort[k].has_frames |= packed->grid_thw[3 * item] > 1;
        if (class_of)
            class_of[item] = (uint8_t)k;
        start += item_patches(packed, item++) / (MERGE_SIDE * MERGE_SIDE);
    }
    *out_n = count;
    return ST_OK;
}

status row_find_videos(const row *packed, const char *source, uint8_t *out_is_video)
{
    id_class sort[2] = {{0}, {0}};
    int count = 0;
    TRY(classify(packed, source, sort, &count, out_is_video));
    /* The video class is the one that fits the patch counts; where both fit, the larger id, as in
     * Qwen3-VL (video_token_id = image_token_id + 1). */
    int video = -1;
    for (int k = 0; k < count; k++) {
        int64_t others = count == 2 ? sort[1 - k].patches : 0;
        bool fits = sort[k].patches == packed->n_video_patches && others == packed->n_patches &&
                    !(count == 2 && sort[1 - k].has_frames);
        if (fits && (video < 0 || sort[k].id > sort[video].id))
            video = k;
    }
    bool none = count == 0 || (count == 1 && packed->n_video_patches == 0 && !sort[0].has_frames);
    if (video < 0 && !none)
        return FAIL_IN(
            ST_BAD_INPUT, source,
            "the token ids of the items do not fit %lld image and %lld video patches (an "
            "image has one frame)",
            (long long)packed->n_patches, (long long)packed->n_video_patches);
    for (int64_t i = 0; out_is_video && i < packed->n_items; i++)
        out_is_video[i] = video >= 0 && out_is_video[i] == video;
    return ST_OK;
}

status row_check(const row *packed, const char *source)
{
    TRY(row_check_counts(packed, source));
    TRY(check_documents(packed, source));
    TRY(check_prefixes(packed, source));
    TRY(check_tokens(packed, source));
    TRY(row_check_grids(packed, source));
    TRY(check_pixels(packed, source));
    TRY(check_visual(packed, source));
    return row_find_videos(packed, source, NULL);
}
