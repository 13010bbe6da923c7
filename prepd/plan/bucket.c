/* bucket.c: shape buckets: capacity vectors that a captured graph is made for. The rows of epoch 0
 * are sorted by size and cut into equal groups; a bucket holds all rows up to its group, so buckets
 * are nested and a row's smallest fit is found by walking up. The last is not from this epoch's
 * rows but from the budgets and the samples, so that it holds any row of any epoch. */
#include <stdlib.h>

#include "prepd/plan/state.h"

/* Capacities are rounded up to whole tiles and to a 128th of the largest, so that buckets of nearly
 * equal rows coincide: at most 0.8 % of padding buys fewer graphs. */
enum { TILE = 64, STEPS = 128, COUNT_STEP = 8 };
/* A patch costs about a sixth of a token's time in the 30B-A3B model (spec 10.4). */
enum { TOKEN_WEIGHT = 6 };

static int64_t round_up(int64_t v, int64_t step, int64_t most)
{
    int64_t up = (v + step - 1) / step * step;
    return up < most ? up : most;
}

static int64_t tiles_up(int64_t v, int64_t most)
{
    int64_t tiles = most / STEPS / TILE;
    return round_up(v, tiles > 1 ? tiles * TILE : TILE, most);
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int smaller_first(const void *a, const void *b)
{
    const row_stat *x = (const row_stat *)a, *y = (const row_stat *)b;
    int64_t size_x = x->tokens * TOKEN_WEIGHT + x->patches;
    int64_t size_y = y->tokens * TOKEN_WEIGHT + y->patches;
    return size_x < size_y ? -1 : size_x > size_y;
}

static bool fits(const shape_bucket *b, const row_stat *r)
{
    return r->tokens <= b->tokens && r->patches <= b->patches && r->documents <= b->documents &&
           r->images <= b->images && r->longest <= b->longest;
}

static bool same(const shape_bucket *a, const shape_bucket *b)
{
    return a->tokens == b->tokens && a->patches == b->patches && a->documents == b->documents &&
           a->images == b->images && a->longest == b->longest;
}

/* The most of something that a row of `tokens` tokens can hold, if no sample has more of it per
 * token than `some` in `in` tokens. */
static int64_t most_in(int64_t tokens, int64_t some, int64_t in)
{
    return (int64_t)((__int128)tokens * some / in);
}

/* No row of any epoch is beyond this: a row has at most as many patches (images) per token as the
 * sample that has the most of them per token. */
static shape_bucket bound_of(const plan *p)
{
    int64_t patches = 0, patch_tokens = 1, images = 0, image_tokens = 1;
    int64_t most_patches = 0, most_images = 0;
    int64_t documents = 1, most_tokens = 0;
    for (int64_t k = 0; k < p->n_units; k++) {
        const plan_unit *u = &p->units[k];
        if (u->patches * patch_tokens > patches * u->tokens) {
            patches = u->patches;
            patch_tokens = u->tokens;
        }
        if (u->images * image_tokens > images * u->tokens) {
            images = u->images;
            image_tokens = u->tokens;
        }
        most_patches = larger(most_patches, u->patches);
        most_images = larger(most_images, u->images);
        most_tokens = larger(most_tokens, u->tokens);
        documents = larger(documents, u->n_docs);
    }
    if (!p->c->data_pack)
        return (shape_bucket){.tokens = most_tokens,
                              .patches = most_patches,
                              .documents = documents,
                              .images = most_images,
                              .longest = p->longest};
    shape_bucket b = {
        .tokens = p->token_budget,
        .patches = most_in(p->token_budget, patches, patch_tokens) / 4 * 4,
        .documents = p->token_budget / p->shortest,
        .images = most_in(p->token_budget, images, image_tokens),
        .longest = p->longest,
    };
    if (b.patches > p->patch_budget)
        b.patches = p->patch_budget;
    return b;
}

status plan_make_buckets(plan *p)
{
    shape_bucket bound = bound_of(p);
    size_t n = (size_t)p->n_rows;
    row_stat *rows = (row_stat *)malloc(n * sizeof *rows);
    if (!rows)
        return FAIL(ST_NO_MEMORY, "no memory to sort %zu rows", n);
    for (size_t k = 0; k < n; k++)
        rows[k] = p->rows[k];
    qsort(rows, n, sizeof *rows, smaller_first);
    row_stat most = {0};
    size_t at = 0;
    p->n_buckets = 0;
    for (size_t group = 1; group < MAX_BUCKETS; group++) {
        for (; at < n * group / (MAX_BUCKETS - 1); at++) {
            most.tokens = larger(most.tokens, rows[at].tokens);
            most.patches = larger(most.patches, rows[at].patches);
            most.documents = larger(most.documents, rows[at].documents);
            most.images = larger(most.images, rows[at].images);
            most.longest = larger(most.longest, rows[at].longest);
        }
        shape_bucket b = {
            .tokens = tiles_up(most.tokens, bound.tokens),
            .patches = tiles_up(most.patches, bound.patches),
            .documents = round_up(most.documents, COUNT_STEP, bound.documents),
            .images = round_up(most.images, COUNT_STEP, bound.images),
            .longest = tiles_up(most.longest, bound.longest),
        };
        if (at && !same(&b, &bound) && !(p->n_buckets && same(&b, &p->buckets[p->n_buckets - 1])))
            p->buckets[p->n_buckets++] = b;
    }
    p->buckets[p->n_buckets++] = bound;
    for (size_t k = 0; k < n; k++) {
        int b = 0;
        while (b + 1 < p->n_buckets && !fits(&p->buckets[b], &rows[k]))
            b++;
        p->buckets[b].rows++;
        p->buckets[b].row_tokens += rows[k].tokens;
        p->buckets[b].row_patches += rows[k].patches;
    }
    free(rows);
    return ST_OK;
}
