/* shape_buckets.c: shape buckets: capacity vectors that a captured graph is made for.
 *
 * The rows of epoch 0 are sorted by predicted time and cut into runs; a bucket holds all rows up to
 * the end of its run, so buckets are nested and a row's smallest fit is found by walking up. The
 * cuts are those with the least time in all, padding included; one more is made only where it saves
 * WORTH of that, since each costs the trainer graphs of its own. The last bucket is not from this
 * epoch's rows but from the budgets and the samples, so that it holds any row of any epoch. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "prepd/plan/planner.h"

enum {
    /* Capacities are rounded up to whole tiles and to a 128th of the largest, so that buckets of
     * nearly equal rows coincide: at most 0.8 % of padding buys fewer graphs. */
    TILE = 64,
    STEPS = 128,
    COUNT_STEP = 8,
    /* Time of a training step of 30B-A3B in MFLOP (spec 10): blocks by token and by patch, the head
     * by target. */
    TOKEN_COST = 18250,
    PATCH_COST = 2900,
    TARGET_COST = 1867,
    MOST_CUTS = 1024, /* ends of runs that are tried: more than rounding leaves */
};
static const double WORTH = 0.002;

/* Capacities of a bucket beside what a row has: one loop instead of eight lines at every use. */
static const struct field {
    size_t of_bucket, of_row;
    int64_t step; /* TILE: whole tiles */
} fields[] = {
#define FIELD(name, step)                                                                          \
    {                                                                                              \
        offsetof(shape_bucket, name), offsetof(row_stat, name), step                               \
    }
    FIELD(tokens, TILE),          FIELD(patches, TILE), FIELD(targets, TILE),
    FIELD(documents, COUNT_STEP), FIELD(longest, TILE), FIELD(images, COUNT_STEP),
    FIELD(frames, COUNT_STEP),    FIELD(frame, TILE),
#undef FIELD
};
enum { N_FIELDS = sizeof fields / sizeof *fields };

static int64_t *cap_at(shape_bucket *b, int k)
{
    return (int64_t *)(void *)((char *)b + fields[k].of_bucket);
}

static int64_t cap_of(const shape_bucket *b, int k)
{
    return *(const int64_t *)(const void *)((const char *)b + fields[k].of_bucket);
}

static int64_t of_row(const row_stat *r, int k)
{
    return *(const int64_t *)(const void *)((const char *)r + fields[k].of_row);
}

static int64_t pick_larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t pick_smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t round_up(int64_t v, int64_t step, int64_t most)
{
    if (step == TILE)
        step = pick_larger(most / STEPS / TILE, 1) * TILE;
    return pick_smaller((v + step - 1) / step * step, most);
}

static int64_t cost(int64_t tokens, int64_t patches, int64_t targets)
{
    return tokens * TOKEN_COST + patches * PATCH_COST + targets * TARGET_COST;
}

static int cheaper_first(const void *a, const void *b)
{
    const row_stat *x = (const row_stat *)a, *y = (const row_stat *)b;
    int64_t cost_x = cost(x->tokens, x->patches, x->targets);
    int64_t cost_y = cost(y->tokens, y->patches, y->targets);
    return cost_x < cost_y ? -1 : cost_x > cost_y;
}

static bool fits_bucket(const shape_bucket *b, const row_stat *r)
{
    for (int k = 0; k < N_FIELDS; k++)
        if (of_row(r, k) > cap_of(b, k))
            return false;
    return true;
}

static bool same(const shape_bucket *a, const shape_bucket *b)
{
    for (int k = 0; k < N_FIELDS; k++)
        if (cap_of(a, k) != cap_of(b, k))
            return false;
    return true;
}

/* The most of something per token that a unit has. */
typedef struct density {
    int64_t some, tokens;
} density;

static void denser(density *d, int64_t some, int64_t tokens)
{
    if (some * d->tokens > d->some * tokens)
        *d = (density){some, tokens};
}

/* So much a row of `tokens` tokens can hold at most. */
static int64_t most_in(int64_t tokens, density d)
{
    return (int64_t)((__int128)tokens * d.some / d.tokens);
}

/* No row of any epoch is beyond this: a row has at most as many patches (images, targets) per token
 * as the unit that has the most of them per token. */
static shape_bucket bound_of(const plan *p)
{
    density patches = {0, 1}, targets = {0, 1}, images = {0, 1}, frames = {0, 1};
    shape_bucket unit = {.longest = p->longest}; /* the most of one alone */
    for (int64_t k = 0; k < p->n_units; k++) {
        const plan_unit *u = &p->units[k];
        denser(&patches, u->patches, u->tokens);
        denser(&targets, u->targets, u->tokens);
        denser(&images, u->images, u->tokens);
        denser(&frames, u->frames, u->tokens);
        unit.tokens = pick_larger(unit.tokens, u->tokens);
        unit.patches = pick_larger(unit.patches, u->patches);
        unit.targets = pick_larger(unit.targets, u->targets);
        unit.images = pick_larger(unit.images, u->images);
        unit.frames = pick_larger(unit.frames, u->frames);
        unit.frame = pick_larger(unit.frame, u->frame);
        unit.documents = pick_larger(unit.documents, u->n_docs);
    }
    if (!p->c->data_pack)
        return unit;
    const int64_t tokens = p->token_budget;
    return (shape_bucket){
        .tokens = tokens,
        .patches = pick_smaller(most_in(tokens, patches) / 4 * 4, p->patch_budget),
        .targets = most_in(tokens, targets),
        .documents = tokens / p->shortest,
        .longest = unit.longest,
        .images = most_in(tokens, images),
        .frames = most_in(tokens, frames),
        .frame = unit.frame,
    };
}

/* A place where a run may end: the bucket of all rows up to there. */
typedef struct cut {
    shape_bucket bucket;
    int64_t rows; /* up to there */
} cut;

/* Rows by rising time; cuts where the bucket of what is behind changes. Returns how many. */
static int find_cuts(const row_stat *rows, int64_t n, const shape_bucket *bound, cut *cuts)
{
    shape_bucket most = {0};
    int n_cuts = 0;
    for (int64_t i = 0; i < n; i++) {
        shape_bucket b = {0};
        for (int k = 0; k < N_FIELDS; k++) {
            *cap_at(&most, k) = pick_larger(cap_of(&most, k), of_row(&rows[i], k));
            *cap_at(&b, k) = round_up(cap_of(&most, k), fields[k].step, cap_of(bound, k));
        }
        if (n_cuts == 0 || (!same(&b, &cuts[n_cuts - 1].bucket) && n_cuts < MOST_CUTS))
            n_cuts++;
        cuts[n_cuts - 1] = (cut){b, i + 1}; /* beyond MOST_CUTS the last one grows */
    }
    return n_cuts;
}

/* Of the cuts, at most `most` that cost the least: `least[k][j]` is the time of all rows
 * up to cut j in k + 1 runs, `from[k][j]` the cut before it. Returns how many; picked[] rises. */
static int choose_cuts(const cut *cuts, int n, int most, int *picked)
{
    static const double NEVER = 1e300;
    double least[MAX_BUCKETS][MOST_CUTS];
    int16_t from[MAX_BUCKETS][MOST_CUTS];
    int runs = 1;
    for (int k = 0; k < most; k++) {
        for (int j = 0; j < n; j++) {
            const shape_bucket *b = &cuts[j].bucket;
            const double each = (double)cost(b->tokens, b->patches, b->targets);
            least[k][j] = k == 0 ? each * (double)cuts[j].rows : NEVER;
            from[k][j] = -1;
            for (int i = 0; k > 0 && i < j; i++) {
                double all = least[k - 1][i] + each * (double)(cuts[j].rows - cuts[i].rows);
                if (all < least[k][j]) {
                    least[k][j] = all;
                    from[k][j] = (int16_t)i;
                }
            }
        }
        if (k > 0 && least[k][n - 1] <= least[runs - 1][n - 1] * (1 - WORTH * (k + 1 - runs)))
            runs = k + 1;
    }
    for (int k = runs - 1, j = n - 1; k >= 0; j = from[k--][j])
        picked[k] = j;
    return runs;
}

/* What each is the smallest fit for. */
static void count_rows(plan *p)
{
    for (int64_t i = 0; i < p->n_rows; i++) {
        int k = 0;
        while (k + 1 < p->n_buckets && !fits_bucket(&p->buckets[k], &p->rows[i]))
            k++;
        p->buckets[k].rows++;
        p->buckets[k].row_tokens += p->rows[i].tokens;
        p->buckets[k].row_patches += p->rows[i].patches;
        p->buckets[k].row_targets += p->rows[i].targets;
    }
}

status plan_make_buckets(plan *p)
{
    const shape_bucket bound = bound_of(p);
    const size_t n = (size_t)p->n_rows;
    row_stat *rows = (row_stat *)malloc((n + 1) * sizeof *rows);
    cut *cuts = (cut *)malloc(MOST_CUTS * sizeof *cuts);
    int picked[MAX_BUCKETS];
    if (!rows || !cuts) {
        free(rows);
        free(cuts);
        return FAIL(ST_NO_MEMORY, "no memory to sort %zu rows", n);
    }
    if (n)
        memcpy(rows, p->rows, n * sizeof *rows);
    qsort(rows, n, sizeof *rows, cheaper_first);
    const int n_cuts = find_cuts(rows, p->n_rows, &bound, cuts);
    const bool is_bound = n_cuts > 0 && same(&cuts[n_cuts - 1].bucket, &bound);
    const int n_picked = n_cuts ? choose_cuts(cuts, n_cuts, MAX_BUCKETS - !is_bound, picked) : 0;
    p->n_buckets = 0;
    for (int k = 0; k < n_picked - is_bound; k++)
        p->buckets[p->n_buckets++] = cuts[picked[k]].bucket;
    p->buckets[p->n_buckets++] = bound;
    count_rows(p);
    free(rows);
    free(cuts);
    return ST_OK;
}
