/* batch_check.c: row_check, which checks everything that a trainer relies on in a row.
 *
 * The checks run in an order in which each may rely on those before it: counts, documents, tokens,
 * grids, pixels, and last visual_row, which ties tokens to items. */
#include "proto/batch_check.h"

#include <math.h>

/* Most patches along a side of a grid, and most frames: their product fits well into an int64. */
enum { GRID_MAX = 65536 };

/* Patches of item i, whose grid has been checked. */
static int64_t item_patches(const row *r, int64_t i)
{
    const int32_t *g = r->grid_thw + 3 * i;
    return (int64_t)g[0] * g[1] * g[2];
}

status row_check_counts(const row *r, const char *source)
{
    const int64_t n[] = {r->n_tokens, r->n_docs, r->n_items, r->n_patches, r->n_video_patches};
    for (size_t i = 0; i < sizeof n / sizeof n[0]; i++)
        if (n[i] < 0 || n[i] > INT32_MAX)
            return FAIL_IN(ST_BAD_INPUT, source, "count %zu of a row is %lld, expected 0 to %d", i,
                           (long long)n[i], INT32_MAX);
    if (r->n_patches + r->n_video_patches > INT32_MAX)
        return FAIL_IN(ST_BAD_INPUT, source, "%lld patches in a row, expected at most %d",
                       (long long)(r->n_patches + r->n_video_patches), INT32_MAX);
    return ST_OK;
}

static status check_documents(const row *r, const char *source)
{
    if (r->cu_seqlens[0] != 0 || r->cu_seqlens[r->n_docs] != r->n_tokens)
        return FAIL_IN(ST_BAD_INPUT, source, "cu_seqlens runs from %d to %d, expected 0 to %lld",
                       r->cu_seqlens[0], r->cu_seqlens[r->n_docs], (long long)r->n_tokens);
    for (int64_t d = 0; d < r->n_docs; d++) {
        int32_t from = r->cu_seqlens[d], to = r->cu_seqlens[d + 1];
        if (to <= from || to > r->n_tokens)
            return FAIL_IN(ST_BAD_INPUT, source,
                           "document %lld runs from token %d to %d, expected rising borders within "
                           "%lld tokens",
                           (long long)d, from, to, (long long)r->n_tokens);
        if (r->labels[from] != NO_LABEL)
            return FAIL_IN(
                ST_BAD_INPUT, source,
                "the first token of document %lld has label %d, expected %d: no token precedes "
                "it that could predict it",
                (long long)d, r->labels[from], NO_LABEL);
        if (r->doc_part[d] < (r->doc_prefix ? -1 : 0))
            return FAIL_IN(ST_BAD_INPUT, source, "doc_part[%lld] is %d, expected 0 or more",
                           (long long)d, r->doc_part[d]);
    }
    return ST_OK;
}

/* Checks that document d is a prefix, whose branches are the documents [d + 1, end). */
static status check_prefix(const row *r, const char *source, int64_t d, int64_t end)
{
    if (r->doc_prefix[d] != -1 || r->doc_part[d] != -1 || end - d < 3)
        return FAIL_IN(
            ST_BAD_INPUT, source,
            "document %lld is a prefix with doc_prefix %d, doc_part %d and %lld branches, "
            "expected -1, -1 and two or more",
            (long long)d, r->doc_prefix[d], r->doc_part[d], (long long)(end - d - 1));
    if (r->doc_sample_id[d] != r->doc_sample_id[d + 1])
        return FAIL_IN(ST_BAD_INPUT, source,
                       "doc_sample_id[%lld] is %llu, expected %llu, that of the prefix's first "
                       "branch",
                       (long long)d, (unsigned long long)r->doc_sample_id[d],
                       (unsigned long long)r->doc_sample_id[d + 1]);
    for (int64_t t = r->cu_seqlens[d]; t < r->cu_seqlens[d + 1]; t++)
        if (r->labels[t] != NO_LABEL || (r->loss_weight && r->loss_weight[t] != 1))
            return FAIL_IN(ST_BAD_INPUT, source,
                           "token %lld of the prefix at document %lld has label %d and weight %g, "
                           "expected %d and 1",
                           (long long)t, (long long)d, r->labels[t],
                           r->loss_weight ? (double)r->loss_weight[t] : 1.0, NO_LABEL);
    return ST_OK;
}

static status check_prefixes(const row *r, const char *source)
{
    int64_t prefixes = 0, end;
    for (int64_t d = 0; r->doc_prefix && d < r->n_docs; d = end) {
        for (end = d + 1; end < r->n_docs && r->doc_prefix[end] == d;)
            if (r->doc_part[end++] != 0)
                return FAIL_IN(ST_BAD_INPUT, source, "doc_part[%lld] is %d, expected 0 of a branch",
                               (long long)(end - 1), r->doc_part[end - 1]);
        if (r->doc_prefix[d] != -1)
            return FAIL_IN(ST_BAD_INPUT, source,
                           "doc_prefix[%lld] is %d, expected -1 or a prefix directly before it and "
                           "its other branches",
                           (long long)d, r->doc_prefix[d]);
        if (end == d + 1 && r->doc_part[d] != -1)
            continue;
        TRY(check_prefix(r, source, d, end));
        prefixes++;
    }
    if (r->doc_prefix && prefixes == 0)
        return FAIL_IN(ST_BAD_INPUT, source,
                       "doc_prefix names no prefix, expected none to be there");
    return ST_OK;
}

static status check_tokens(const row *r, const char *source)
{
    int64_t n = r->n_tokens;
    for (int64_t t = 0; t < n; t++) {
        if (r->input_ids[t] < 0)
            return FAIL_IN(ST_BAD_INPUT, source, "input_ids[%lld] is %d, expected 0 or more",
                           (long long)t, r->input_ids[t]);
        if (r->labels[t] < 0 && r->labels[t] != NO_LABEL)
            return FAIL_IN(ST_BAD_INPUT, source, "labels[%lld] is %d, expected %d or a token id",
                           (long long)t, r->labels[t], NO_LABEL);
        if (r->loss_weight && !(isfinite(r->loss_weight[t]) && r->loss_weight[t] >= 0))
            return FAIL_IN(ST_BAD_INPUT, source,
                           "loss_weight[%lld] is %g, expected finite and not negative",
                           (long long)t, (double)r->loss_weight[t]);
    }
    for (int64_t i = 0; i < 3 * n; i++)
        if (r->position_ids[i] < 0)
            return FAIL_IN(ST_BAD_INPUT, source,
                           "position_ids[%lld, %lld] is %d, expected 0 or more", (long long)(i / n),
                           (long long)(i % n), r->position_ids[i]);
    return ST_OK;
}

/* Patches of all items together, whose grids have been checked. */
static int64_t total_patches(const row *r)
{
    int64_t total = 0;
    for (int64_t i = 0; i < r->n_items; i++)
        total += item_patches(r, i);
    return total;
}

status row_check_grids(const row *r, const char *source)
{
    int64_t total = 0;
    for (int64_t i = 0; i < r->n_items; i++) {
        const int32_t *g = r->grid_thw + 3 * i;
        if (g[0] < 1 || g[1] < 1 || g[2] < 1 || g[0] > GRID_MAX || g[1] > GRID_MAX ||
            g[2] > GRID_MAX || g[1] % MERGE_SIDE || g[2] % MERGE_SIDE)
            return FAIL_IN(
                ST_BAD_INPUT, source,
                "grid_thw[%lld] is %d x %d x %d, expected 1 to %d, height and width even",
                (long long)i, g[0], g[1], g[2], GRID_MAX);
        total += item_patches(r, i);
        if (total > INT32_MAX)
            return FAIL_IN(ST_BAD_INPUT, source, "grid_thw sums to over %d patches", INT32_MAX);
    }
    return ST_OK;
}

static status check_pixels(const row *r, const char *source)
{
    int64_t total = total_patches(r);
    if (total != r->n_patches + r->n_video_patches)
        return FAIL_IN(
            ST_BAD_INPUT, source,
            "grid_thw sums to %lld patches, the row has %lld of images and %lld of videos",
            (long long)total, (long long)r->n_patches, (long long)r->n_video_patches);
    return ST_OK;
}

/* The state of a walk over visual_row. */
typedef struct visual_walk {
    int64_t item;      /* the item being read; -1 between items */
    int32_t next, end; /* its next merged row and the one after its last */
    int32_t id;        /* its token id */
    int64_t n_seen;    /* items met so far */
} visual_walk;

/* Finds the item *out whose first merged row token t shows. Most items are new, so the next unseen
 * one is tried first; only an item that an earlier document shows needs a search. */
static status find_item(const row *r, const char *source, int64_t t, int64_t n_seen,
                        int64_t seen_rows, int64_t *out)
{
    int64_t m = r->visual_row[t], start = 0;
    if (m == seen_rows && n_seen < r->n_items) {
        *out = n_seen;
        return ST_OK;
    }
    for (int64_t i = 0; i < n_seen; i++) {
        if (start == m) {
            *out = i;
            return ST_OK;
        }
        start += item_patches(r, i) / (MERGE_SIDE * MERGE_SIDE);
    }
    return FAIL_IN(ST_BAD_INPUT, source,
                   "visual_row[%lld] is %lld, expected the first row of an item (the next new item "
                   "begins at row %lld)",
                   (long long)t, (long long)m, (long long)seen_rows);
}

/* Checks that every visual token begins an item or continues one, that items end inside the
 * document they began in, and that new items come in the order of grid_thw with none left out. */
static status check_visual(const row *r, const char *source)
{
    visual_walk w = {.item = -1};
    int64_t seen_rows = 0, doc = 0;
    for (int64_t t = 0; t < r->n_tokens; t++) {
        if (t == r->cu_seqlens[doc + 1]) {
            doc++;
            if (w.item >= 0)
                return FAIL_IN(ST_BAD_INPUT, source,
                               "item %lld is cut by the end of document %lld at token %lld",
                               (long long)w.item, (long long)(doc - 1), (long long)t);
        }
        int32_t m = r->visual_row[t];
        if (m == -1)
            continue;
        if (w.item < 0) {
            TRY(find_item(r, source, t, w.n_seen, seen_rows, &w.item));
            int32_t rows = (int32_t)(item_patches(r, w.item) / (MERGE_SIDE * MERGE_SIDE));
            w.next = m;
            w.end = m + rows;
            w.id = r->input_ids[t];
            if (w.item == w.n_seen) {
                w.n_seen++;
                seen_rows += rows;
            }
        }
        if (m != w.next || r->input_ids[t] != w.id)
            return FAIL_IN(ST_BAD_INPUT, source,
                           "visual_row[%lld] is %d with token id %d, expected row %d of item %lld "
                           "with id %d",
                           (long long)t, m, r->input_ids[t], w.next, (long long)w.item, w.id);
        if (++w.next == w.end)
            w.item = -1;
    }
    if (w.item >= 0)
        return FAIL_IN(ST_BAD_INPUT, source, "item %lld is cut by the end of the row",
                       (long long)w.item);
    if (w.n_seen != r->n_items)
        return FAIL_IN(ST_BAD_INPUT, source, "item %lld of %lld has no tokens", (long long)w.n_seen,
                       (long long)r->n_items);
    return ST_OK;
}

/* The items that share one token id: all their patches, and whether one has several frames. */
typedef struct id_class {
    int32_t id;
    int64_t patches;
    bool has_frames;
} id_class;

/* Sorts the items into at most two classes by token id. class_of [I] u8. */
static status classify(const row *r, const char *source, id_class c[2], int *out_n,
                       uint8_t *class_of)
{
    int n = 0;
    int64_t item = 0, start = 0;
    for (int64_t t = 0; t < r->n_tokens && item < r->n_items; t++) {
        if (r->visual_row[t] != start)
            continue;
        int32_t id = r->input_ids[t];
        int k = 0;
        while (k < n && c[k].id != id)
            k++;
        if (k == 2)
            return FAIL_IN(ST_BAD_INPUT, source,
                           "items have the token ids %d, %d and %d, expected one for images and "
                           "one for videos",
                           c[0].id, c[1].id, id);
        if (k == n)
            c[n++] = (id_class){.id = id};
        c[k].patches += item_patches(r, item);
        c[k].has_frames |= r->grid_thw[3 * item] > 1;
        class_of[item] = (uint8_t)k;
        start += item_patches(r, item++) / (MERGE_SIDE * MERGE_SIDE);
    }
    *out_n = n;
    return ST_OK;
}

status row_find_videos(const row *r, const char *source, uint8_t *out_is_video)
{
    id_class c[2] = {{0}, {0}};
    int n = 0;
    TRY(classify(r, source, c, &n, out_is_video));
    /* The video class is the one that fits the patch counts; where both fit, the larger id, as in
     * Qwen3-VL (video_token_id = image_token_id + 1). */
    int video = -1;
    for (int k = 0; k < n; k++) {
        int64_t others = n == 2 ? c[1 - k].patches : 0;
        bool fits = c[k].patches == r->n_video_patches && others == r->n_patches &&
                    !(n == 2 && c[1 - k].has_frames);
        if (fits && (video < 0 || c[k].id > c[video].id))
            video = k;
    }
    bool none = n == 0 || (n == 1 && r->n_video_patches == 0 && !c[0].has_frames);
    if (video < 0 && !none)
        return FAIL_IN(
            ST_BAD_INPUT, source,
            "the token ids of the items do not fit %lld image and %lld video patches (an "
            "image has one frame)",
            (long long)r->n_patches, (long long)r->n_video_patches);
    for (int64_t i = 0; i < r->n_items; i++)
        out_is_video[i] = video >= 0 && out_is_video[i] == video;
    return ST_OK;
}

/* Checks only that a reading exists; codec.c asks again when it needs the kinds. */
static status check_kinds(const row *r, const char *source)
{
    uint8_t few[64], *kinds = few;
    arena scratch;
    arena_init(&scratch, 0);
    status st = ST_OK;
    if (r->n_items > (int64_t)sizeof few)
        TRY_OR(done, arena_alloc(&scratch, (size_t)r->n_items, (void **)&kinds));
    st = row_find_videos(r, source, kinds);
done:
    arena_done(&scratch);
    return st;
}

status row_check(const row *r, const char *source)
{
    TRY(row_check_counts(r, source));
    TRY(check_documents(r, source));
    TRY(check_prefixes(r, source));
    TRY(check_tokens(r, source));
    TRY(row_check_grids(r, source));
    TRY(check_pixels(r, source));
    TRY(check_visual(r, source));
    return check_kinds(r, source);
}
