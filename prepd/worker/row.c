/* row.c: positions of the tokens, and the row that documents make together. */
#include "prepd/worker/row.h"

#include <inttypes.h>
#include <string.h>

void row_positions(int64_t n, const int64_t *run_at, const fit_grid *grids, int32_t n_items,
                   int32_t *position, int64_t stride)
{
    int32_t *const at_t = position, *const at_h = position + stride;
    int32_t *const at_w = position + 2 * stride;
    int32_t now = 0;
    int32_t item = 0, run_of_item = 0;
    for (int64_t i = 0; i < n;) {
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
        for (int32_t y = 0; y < height; y++) {
            for (int32_t x = 0; x < width; x++, i++) {
                at_t[i] = now;
                at_h[i] = now + y;
                at_w[i] = now + x;
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
static status check_document(const document *d)
{
    if (d->text.count < 1)
        return FAIL(ST_BAD_INPUT, "sample %" PRIu64 " has no tokens", d->sample_id);
    int64_t free_from = 0, run = 0;
    for (int32_t k = 0; k < d->n_images; k++) {
        const int64_t tokens = fit_run_tokens(d->grids[k]), end = run + fit_runs(d->grids[k]);
        for (; run < end; run++) {
            const int64_t at = run < d->text.n_runs ? d->text.run_at[run] : d->text.count;
            if (at < free_from || tokens < 1 || at > d->text.count - tokens)
                return FAIL(ST_BAD_INPUT,
                            "sample %" PRIu64 ": image %d takes tokens %" PRId64 " to %" PRId64
                            ", expected within %" PRId64 " to %" PRId64
                            " (its text was measured with another grid)",
                            d->sample_id, k, at, at + tokens, free_from, d->text.count);
            free_from = at + tokens;
        }
    }
    return ST_OK;
}

static status check_shared(const document *before, const document *d)
{
    bool same = before && before->n_images == d->n_images && d->n_images > 0;
    for (int32_t k = 0; same && k < d->n_images; k++)
        same = before->grids[k].rows == d->grids[k].rows &&
               before->grids[k].columns == d->grids[k].columns &&
               before->grids[k].pairs == d->grids[k].pairs;
    if (!same)
        return FAIL(ST_BAD_INPUT,
                    "sample %" PRIu64 " shares the images of the document before it, but that one "
                    "shows others",
                    d->sample_id);
    return ST_OK;
}

static status count_row(const document *docs, int64_t n_docs, row *r)
{
    *r = (row){.n_docs = n_docs, .cursor = "", .quarantine = "", .references = ""};
    for (int64_t i = 0; i < n_docs; i++) {
        TRY(check_document(&docs[i]));
        r->n_tokens += docs[i].text.count;
        if (docs[i].shared) {
            TRY(check_shared(i ? &docs[i - 1] : NULL, &docs[i]));
            continue;
        }
        r->n_items += docs[i].n_images;
        for (int32_t k = 0; k < docs[i].n_images; k++)
            *(docs[i].grids[k].pairs ? &r->n_video_patches : &r->n_patches) +=
                fit_patches(docs[i].grids[k]);
    }
    if (r->n_tokens > INT32_MAX || r->n_patches + r->n_video_patches > INT32_MAX)
        return FAIL(ST_BAD_INPUT,
                    "the row has %" PRId64 " tokens and %" PRId64
                    " patches, expected at most %d of each",
                    r->n_tokens, r->n_patches + r->n_video_patches, INT32_MAX);
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

static bool has_patches(const document *d, int32_t k)
{
    return !d->quarantined && d->patches && d->patches[k];
}

/* Writes the visual rows, grids and items of a document. The patches of a shared image come from
 * any document that shows it and is not quarantined. */
static void put_images(const document *d, row *r, place *p)
{
    visual_place at = d->shared ? p->shown_from : p->next;
    const int64_t *run = d->text.run_at;
    p->shown_from = d->n_images > 0 ? at : p->shown_from;
    for (int32_t k = 0; k < d->n_images; k++) {
        const fit_grid g = d->grids[k];
        const int64_t run_tokens = fit_run_tokens(g);
        item_pixels *item = &p->items[at.item];
        for (int32_t f = 0; f < fit_runs(g); f++, run++)
            for (int64_t i = 0; i < run_tokens; i++)
                r->visual_row[p->token + *run + i] = (int32_t)at.merged++;
        if (has_patches(d, k))
            *item = (item_pixels){d->patches[k], g.pairs > 0};
        else if (!d->shared)
            *item = (item_pixels){p->zeros, g.pairs > 0};
        int32_t *grid = r->grid_thw + at.item++ * 3;
        grid[0] = fit_runs(g);
        grid[1] = g.rows;
        grid[2] = g.columns;
    }
    if (!d->shared)
        p->next = at;
}

/* Allocates the items, and zeros for those without patches. */
static status begin_items(const document *docs, int64_t n_docs, arena *a, row *r, place *p)
{
    int64_t most = 0;
    for (int64_t i = 0; i < n_docs; i++) {
        for (int32_t k = 0; k < docs[i].n_images; k++) {
            const int64_t bytes = row_item_bytes(docs[i].grids[k]);
            if (!has_patches(&docs[i], k) && bytes > most)
                most = bytes;
        }
    }
    TRY(arena_calloc(a, (size_t)most, 1, (void **)&p->zeros));
    TRY(arena_calloc(a, (size_t)r->n_items + 1, sizeof *p->items, (void **)&p->items));
    r->items = p->items;
    return ST_OK;
}

status row_build(const document *docs, int64_t n_docs, arena *a, row *out)
{
    row r;
    place p = {0};
    TRY(count_row(docs, n_docs, &r));
    bool weighted = false;
    for (int64_t i = 0; i < n_docs; i++)
        weighted |= docs[i].text.weights != NULL;
    TRY(begin_items(docs, n_docs, a, &r, &p));
    TRY(row_alloc(&r, a, weighted ? ROW_WEIGHTS : 0)); /* labels NO_LABEL, visual_row -1 */
    for (int64_t i = 0; i < n_docs; i++) {
        const document *d = &docs[i];
        const size_t n = (size_t)d->text.count;
        memcpy(r.input_ids + p.token, d->text.ids, n * sizeof *r.input_ids);
        if (!d->quarantined) /* no token before the first one could predict it */
            memcpy(r.labels + p.token + 1, d->text.labels + 1, (n - 1) * sizeof *r.labels);
        for (size_t t = 0; weighted && t < n; t++)
            r.loss_weight[p.token + (int64_t)t] = d->text.weights ? d->text.weights[t] : 1.0F;
        row_positions(d->text.count, d->text.run_at, d->grids, d->n_images,
                      r.position_ids + p.token, r.n_tokens);
        put_images(d, &r, &p);
        p.token += d->text.count;
        r.cu_seqlens[i + 1] = (int32_t)p.token;
        r.doc_sample_id[i] = d->sample_id;
        r.doc_part[i] = d->part;
    }
    *out = r;
    return ST_OK;
}
