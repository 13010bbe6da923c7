#include "prepd/worker/row.h"

#include <inttypes.h>
#include <string.h>

void row_positions(int64_t n, const int64_t *item_at, const fit_grid *grids, int32_t n_items,
                   int32_t *position, int64_t stride)
{
    int32_t *const at_t = position, *const at_h = position + stride;
    int32_t *const at_w = position + 2 * stride;
    int32_t now = 0;
    int32_t item = 0;
    for (int64_t i = 0; i < n;) {
        if (item == n_items || i < item_at[item]) {
            at_t[i] = at_h[i] = at_w[i] = now++;
            i++;
            continue;
        }
        /* A still image: T stands, H and W count merged rows and columns; then the text goes on
         * behind the longer side, not behind the number of tokens. */
        const int32_t height = grids[item].h / MERGE_SIDE, width = grids[item].w / MERGE_SIDE;
        for (int32_t y = 0; y < height; y++) {
            for (int32_t x = 0; x < width; x++, i++) {
                at_t[i] = now;
                at_h[i] = now + y;
                at_w[i] = now + x;
            }
        }
        now += height > width ? height : width;
        item++;
    }
}

/* The pads of every item must lie inside the document, one behind the other. */
static status check_document(const document *d)
{
    if (d->text.n < 1)
        return FAIL(ST_BAD_INPUT, "sample %" PRIu64 " has no tokens", d->sample_id);
    int64_t free_from = 0;
    for (int32_t k = 0; k < d->n_images; k++) {
        const int64_t at = d->text.image_at[k], tokens = fit_tokens(d->grids[k]);
        if (at < free_from || tokens < 1 || at > d->text.n - tokens)
            return FAIL(ST_BAD_INPUT,
                        "sample %" PRIu64 ": image %d takes tokens %" PRId64 " to %" PRId64
                        ", expected within %" PRId64 " to %" PRId64
                        " (its text was measured with another grid)",
                        d->sample_id, k, at, at + tokens, free_from, d->text.n);
        free_from = at + tokens;
    }
    return ST_OK;
}

static status check_shared(const document *before, const document *d)
{
    bool same = before && before->n_images == d->n_images && d->n_images > 0;
    for (int32_t k = 0; same && k < d->n_images; k++)
        same = before->grids[k].h == d->grids[k].h && before->grids[k].w == d->grids[k].w;
    if (!same)
        return FAIL(ST_BAD_INPUT,
                    "sample %" PRIu64 " shares the images of the document before it, which shows "
                    "others",
                    d->sample_id);
    return ST_OK;
}

static status count(const document *docs, int64_t n_docs, row *r)
{
    *r = (row){.n_docs = n_docs, .cursor = "", .quarantine = "", .references = ""};
    for (int64_t i = 0; i < n_docs; i++) {
        TRY(check_document(&docs[i]));
        r->n_tokens += docs[i].text.n;
        if (docs[i].shared) {
            TRY(check_shared(i ? &docs[i - 1] : NULL, &docs[i]));
            continue;
        }
        r->n_items += docs[i].n_images;
        for (int32_t k = 0; k < docs[i].n_images; k++)
            r->n_patches += fit_patches(docs[i].grids[k]);
    }
    if (r->n_tokens > INT32_MAX || r->n_patches > INT32_MAX)
        return FAIL(ST_BAD_INPUT,
                    "a row of %" PRId64 " tokens and %" PRId64
                    " patches, expected at most %d of each",
                    r->n_tokens, r->n_patches, INT32_MAX);
    return ST_OK;
}

typedef struct place {
    int64_t token, item, patch; /* what was written before this document */
    int64_t shown;              /* first patch of the images that were shown last */
} place;

/* A shared image is written again by every document that has it: the same bytes, or none if that
 * one is quarantined. */
static void put_images(const document *d, row *r, place *p)
{
    int64_t patch = d->shared ? p->shown : p->patch;
    p->shown = d->n_images > 0 ? patch : p->shown;
    for (int32_t k = 0; k < d->n_images; k++) {
        const fit_grid g = d->grids[k];
        const int64_t n_patches = fit_patches(g), n_tokens = fit_tokens(g);
        int32_t *rows = r->visual_row + p->token + d->text.image_at[k];
        for (int64_t i = 0; i < n_tokens; i++)
            rows[i] = (int32_t)(patch / (MERGE_SIDE * MERGE_SIDE) + i);
        if (!d->quarantined && d->patches && d->patches[k])
            memcpy(r->pixels + patch * PATCH_BYTES, d->patches[k], (size_t)n_patches * PATCH_BYTES);
        patch += n_patches;
        if (d->shared)
            continue;
        int32_t *grid = r->grid_thw + p->item++ * 3;
        grid[0] = 1;
        grid[1] = g.h;
        grid[2] = g.w;
        p->patch += n_patches;
    }
}

status row_build(const document *docs, int64_t n_docs, arena *a, row *out)
{
    row r;
    TRY(count(docs, n_docs, &r));
    bool weighted = false;
    for (int64_t i = 0; i < n_docs; i++)
        weighted |= docs[i].text.weights != NULL;
    TRY(row_alloc(&r, a, weighted)); /* labels NO_LABEL, visual_row -1, pixels zero */
    place p = {0};
    for (int64_t i = 0; i < n_docs; i++) {
        const document *d = &docs[i];
        const size_t n = (size_t)d->text.n;
        memcpy(r.input_ids + p.token, d->text.ids, n * sizeof *r.input_ids);
        if (!d->quarantined) /* the first token has no predecessor that could learn it */
            memcpy(r.labels + p.token + 1, d->text.labels + 1, (n - 1) * sizeof *r.labels);
        for (size_t t = 0; weighted && t < n; t++)
            r.loss_weight[p.token + (int64_t)t] = d->text.weights ? d->text.weights[t] : 1.0F;
        row_positions(d->text.n, d->text.image_at, d->grids, d->n_images, r.position_ids + p.token,
                      r.n_tokens);
        put_images(d, &r, &p);
        p.token += d->text.n;
        r.cu_seqlens[i + 1] = (int32_t)p.token;
        r.doc_sample_id[i] = d->sample_id;
        r.doc_part[i] = d->part;
    }
    *out = r;
    return ST_OK;
}
