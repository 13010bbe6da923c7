/* SPDX-License-Identifier: Apache-2.0 */
/* row.c: positions of the tokens, and the row that documents make together. */
#include "prepd/worker/row.h"

#include <inttypes.h>
#include <string.h>

void row_positions(int64_t n_tokens, const int64_t *run_at, const fit_grid *grids, int32_t n_items,
                   int32_t *position, int64_t stride)
{
    int32_t *const at_t = position, *const at_h = position + stride;
    int32_t *const at_w = position + 2 * stride;
    int32_t now = 0;
    int32_t item = 0, run_of_item = 0;
    for (int64_t i = 0; i < n_tokens;) {
        if (item == n_items || i < *run_at) {
            at_t[i] = at_h[i] = at_w[i] = now++;
            i++;
            continue;
        }
        /* A picture, or a pair of frames as if it were one: time stands still, height and width
         * count merged rows and columns. The text then continues after the longer side, not after
         * the number of visual tokens. */
        const int32_t height = grids[item].rows / MERGE_SIDE,
                      width = grids[item].columns / MERGE_SIDE;
        for (int32_t j = 0; j < height; j++) {
            for (int32_t k = 0; k < width; k++, i++) {
                at_t[i] = now;
                at_h[i] = now + j;
                at_w[i] = now + k;
            }
        }
        now += height > width ? height : width;
        run_at++;
        if (++run_of_item == fit_runs(grids[item])) {
            item++;
            run_of_item = 0;
        }
    }
}

/* Checks that the pads of all items lie inside the document, one after the other. */
static status check_document(const document *doc)
{
    if (doc->text.count < 1)
        return FAIL(ST_BAD_INPUT, "sample %" PRIu64 " has no tokens", doc->sample_id);
    int64_t free_from = 0, run = 0;
    for (int32_t k = 0; k < doc->n_images; k++) {
        const int64_t tokens = fit_run_tokens(doc->grids[k]), end = run + fit_runs(doc->grids[k]);
        for (; run < end; run++) {
            const int64_t at = run < doc->text.n_runs ? doc->text.run_at[run] : doc->text.count;
            if (at < free_from || tokens < 1 || at > doc->text.count - tokens)
                return FAIL(ST_BAD_INPUT,
                            "sample %" PRIu64 ": image %d takes tokens %" PRId64 " to %" PRId64
                            ", expected within %" PRId64 " to %" PRId64
                            " (its text was measured with another grid)",
                            doc->sample_id, k, at, at + tokens, free_from, doc->text.count);
            free_from = at + tokens;
        }
    }
    return ST_OK;
}

static status check_shared(const document *before, const document *doc)
{
    bool same = before && before->n_images == doc->n_images && doc->n_images > 0;
    for (int32_t k = 0; same && k < doc->n_images; k++)
        same = before->grids[k].rows == doc->grids[k].rows &&
               before->grids[k].columns == doc->grids[k].columns &&
               before->grids[k].pairs == doc->grids[k].pairs;
    if (!same)
        return FAIL(ST_BAD_INPUT,
                    "sample %" PRIu64 " shares the images of the document before it, but that one "
                    "shows others",
                    doc->sample_id);
    return ST_OK;
}

/* The tokens of a document that are its own in the row. */
static int64_t own_tokens(const document *doc)
{
    return doc->text.count - doc->before;
}

/* Checks that a branch goes on after the prefix: that its sample begins with the prefix's ids, and
 * that no image is left for the branch to lay down. Its first own token has no label, since the
 * token that would predict it belongs to the prefix. */
static status check_branch(const document *prefix, const document *doc)
{
    int64_t visual_end = 0, run = 0, labelled = 0;
    for (int32_t k = 0; k < doc->n_images; run += fit_runs(doc->grids[k++]))
        visual_end =
            doc->text.run_at[run + fit_runs(doc->grids[k]) - 1] + fit_run_tokens(doc->grids[k]);
    if (doc->before != prefix->text.count || own_tokens(doc) < 1 || visual_end > doc->before)
        return FAIL(ST_INTERNAL,
                    "sample %" PRIu64 " has %" PRId64 " tokens, visual ones up to %" PRId64
                    ", and takes %" PRId64 " of a prefix of %" PRId64 ": plan and worker disagree",
                    doc->sample_id, doc->text.count, visual_end, doc->before, prefix->text.count);
    while (labelled <= doc->before && doc->text.labels[labelled] == NO_LABEL)
        labelled++;
    if (labelled <= doc->before ||
        memcmp(doc->text.ids, prefix->text.ids, (size_t)doc->before * sizeof *doc->text.ids) != 0)
        return FAIL(ST_INTERNAL,
                    "sample %" PRIu64 " does not begin with the %" PRId64
                    " tokens of its prefix, or has a label there: plan and worker disagree",
                    doc->sample_id, doc->before);
    return ST_OK;
}

/* Checks the prefixes of a row and the branches that follow them; *out_any says whether there are
 * any. */
static status check_prefixes(const document *docs, int64_t n_docs, bool *out_any)
{
    const document *prefix = NULL;
    int32_t left = 0; /* branches of the prefix that are still to come */
    *out_any = false;
    for (int64_t i = 0; i <= n_docs; i++) {
        const bool is_branch = i < n_docs && docs[i].before > 0;
        if (is_branch && left == 0)
            return FAIL(ST_INTERNAL, "document %" PRId64 " is a branch, but of no prefix", i);
        if (!is_branch && left > 0)
            return FAIL(ST_INTERNAL,
                        "document %" PRId64
                        " stands where the prefix before it still needs %d branches",
                        i, (int)left);
        if (i == n_docs)
            break;
        if (is_branch) {
            TRY(check_branch(prefix, &docs[i]));
            left--;
        } else if (docs[i].branches > 0) {
            prefix = &docs[i];
            left = prefix->branches;
            *out_any = true;
        }
    }
    return ST_OK;
}

static status count_row(const document *docs, int64_t n_docs, row *packed)
{
    *packed =
        (row){.n_docs = n_docs, .cursor = "", .quarantine = "", .references = "", .worker = ""};
    for (int64_t i = 0; i < n_docs; i++) {
        TRY(check_document(&docs[i]));
        packed->n_tokens += own_tokens(&docs[i]);
        if (docs[i].before > 0)
            continue; /* its images are the prefix's */
        if (docs[i].shared) {
            TRY(check_shared(i ? &docs[i - 1] : NULL, &docs[i]));
            continue;
        }
        packed->n_items += docs[i].n_images;
        for (int32_t k = 0; k < docs[i].n_images; k++)
            *(docs[i].grids[k].pairs ? &packed->n_video_patches : &packed->n_patches) +=
                fit_patches(docs[i].grids[k]);
    }
    if (packed->n_tokens > INT32_MAX || packed->n_patches + packed->n_video_patches > INT32_MAX)
        return FAIL(ST_BAD_INPUT,
                    "the row has %" PRId64 " tokens and %" PRId64
                    " patches, expected at most %d of each",
                    packed->n_tokens, packed->n_patches + packed->n_video_patches, INT32_MAX);
    return ST_OK;
}

typedef struct visual_place {
    int64_t item, merged; /* numbers of the next item and of its first merged row */
} visual_place;

typedef struct place {
    int64_t token;           /* tokens written before this document */
    visual_place next;       /* the next new item */
    visual_place shown_from; /* the first image of the document that showed images last */
    item_pixels *items;      /* [n_items] of the row */
    const uint8_t *zeros;    /* as long as the largest item without patches */
} place;

static bool has_patches(const document *doc, int32_t index)
{
    return !doc->quarantined && doc->patches && doc->patches[index];
}

/* Writes the visual rows, grids and items of a document. The patches of a shared image come from
 * any document that shows it and is not quarantined. */
static void put_images(const document *doc, row *packed, place *spot)
{
    if (doc->before > 0)
        return; /* the prefix shows them */
    visual_place at = doc->shared ? spot->shown_from : spot->next;
    const int64_t *run = doc->text.run_at;
    spot->shown_from = doc->n_images > 0 ? at : spot->shown_from;
    for (int32_t k = 0; k < doc->n_images; k++) {
        const fit_grid its_grid = doc->grids[k];
        const int64_t run_tokens = fit_run_tokens(its_grid);
        item_pixels *item = &spot->items[at.item];
        for (int32_t fit_run = 0; fit_run < fit_runs(its_grid); fit_run++, run++)
            for (int64_t i = 0; i < run_tokens; i++)
                packed->visual_row[spot->token + *run + i] = (int32_t)at.merged++;
        if (has_patches(doc, k))
            *item = (item_pixels){doc->patches[k], its_grid.pairs > 0};
        else if (!doc->shared)
            *item = (item_pixels){spot->zeros, its_grid.pairs > 0};
        int32_t *grid = packed->grid_thw + at.item++ * 3;
        grid[0] = fit_runs(its_grid);
        grid[1] = its_grid.rows;
        grid[2] = its_grid.columns;
    }
    if (!doc->shared)
        spot->next = at;
}

/* Allocates the items, and zeros for those without patches. */
static status begin_items(const document *docs, int64_t n_docs, arena *memory, row *packed,
                          place *spot)
{
    int64_t most = 0;
    for (int64_t i = 0; i < n_docs; i++) {
        for (int32_t k = 0; docs[i].before == 0 && k < docs[i].n_images; k++) {
            const int64_t bytes = row_item_bytes(docs[i].grids[k]);
            if (!has_patches(&docs[i], k) && bytes > most)
                most = bytes;
        }
    }
    TRY(arena_calloc(memory, (size_t)most, 1, (void **)&spot->zeros));
    TRY(arena_calloc(memory, (size_t)packed->n_items + 1, sizeof *spot->items,
                     (void **)&spot->items));
    packed->items = spot->items;
    return ST_OK;
}

/* Writes the ids, labels and weights of a document. */
static void put_text(const document *doc, row *packed, int64_t token)
{
    const int64_t from = doc->before, count = own_tokens(doc);
    memcpy(packed->input_ids + token, doc->text.ids + from,
           (size_t)count * sizeof *packed->input_ids);
    if (!doc->quarantined && !doc->branches) /* no token before the first one could predict it */
        memcpy(packed->labels + token + 1, doc->text.labels + from + 1,
               (size_t)(count - 1) * sizeof *packed->labels);
    for (int64_t j = 0; packed->loss_weight && j < count; j++)
        packed->loss_weight[token + j] =
            doc->text.weights && !doc->branches ? doc->text.weights[from + j] : 1.0F;
}

/* Writes the positions of a document. Those of a branch are computed with its whole sample, in
 * scratch [3, tokens of the sample], and cut. */
static void put_positions(const document *doc, int32_t *scratch, row *packed, int64_t token)
{
    int32_t *position = packed->position_ids + token;
    const int64_t whole = doc->text.count, count = own_tokens(doc);
    if (doc->before == 0) {
        row_positions(whole, doc->text.run_at, doc->grids, doc->n_images, position,
                      packed->n_tokens);
        return;
    }
    row_positions(whole, doc->text.run_at, doc->grids, doc->n_images, scratch, whole);
    for (int axis = 0; axis < 3; axis++)
        memcpy(position + axis * packed->n_tokens, scratch + axis * whole + doc->before,
               (size_t)count * sizeof *position);
}

/* Room for the positions of the longest sample that is a branch. */
static status alloc_scratch(const document *docs, int64_t n_docs, arena *memory, int32_t **out)
{
    int64_t longest = 0;
    for (int64_t i = 0; i < n_docs; i++)
        if (docs[i].before > 0 && docs[i].text.count > longest)
            longest = docs[i].text.count;
    return arena_calloc(memory, 3 * (size_t)longest + 1, sizeof **out, (void **)out);
}

status row_build(const document *docs, int64_t n_docs, arena *memory, row *out)
{
    row packed;
    place spot = {0};
    int32_t *scratch;
    int64_t prefix = -1;
    bool weighted = false, prefixes;
    TRY(count_row(docs, n_docs, &packed));
    TRY(check_prefixes(docs, n_docs, &prefixes));
    for (int64_t i = 0; i < n_docs; i++)
        weighted |= docs[i].text.weights != NULL;
    TRY(begin_items(docs, n_docs, memory, &packed, &spot));
    TRY(alloc_scratch(docs, n_docs, memory, &scratch));
    TRY(row_alloc(
        &packed, memory,
        (weighted ? ROW_WEIGHTS : 0u) |
            (prefixes ? ROW_PREFIXES : 0u))); /* labels NO_LABEL, visual_row, doc_prefix -1 */
    for (int64_t i = 0; i < n_docs; i++) {
        const document *doc = &docs[i];
        put_text(doc, &packed, spot.token);
        put_positions(doc, scratch, &packed, spot.token);
        put_images(doc, &packed, &spot);
        spot.token += own_tokens(doc);
        packed.cu_seqlens[i + 1] = (int32_t)spot.token;
        packed.doc_sample_id[i] = doc->sample_id;
        packed.doc_part[i] = doc->part;
        prefix = doc->branches > 0 ? i : prefix;
        if (doc->before > 0)
            packed.doc_prefix[i] = (int32_t)prefix;
    }
    *out = packed;
    return ST_OK;
}
