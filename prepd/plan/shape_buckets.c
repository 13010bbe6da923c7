/* SPDX-License-Identifier: Apache-2.0 */
/* shape_buckets.c: chooses the shape buckets, the capacities that the trainer's captured graphs are
 * made for.
 *
 * The rows of epoch 0 are sorted by predicted time and cut into runs. A bucket holds all rows up to
 * the end of its run, so buckets are nested, and the smallest that fits a row is found by walking
 * up. The cuts are those with the least total time, padding included (a dynamic program over the
 * places where the capacities change). One bucket more is made only where it saves at least WORTH
 * of the total, since each bucket costs the trainer graphs of its own. The last bucket comes from
 * the budgets and the samples instead of this epoch's rows, so that it holds any row of any epoch.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/compare.h"
#include "prepd/plan/planner.h"

enum {
    /* Capacities are rounded up to whole tiles and to a 128th of the largest, so that the buckets
     * of nearly equal rows coincide. At most 0.8 % of padding buys fewer graphs. */
    TILE = 64,
    STEPS = 128,
    COUNT_STEP = 8,
    /* Time of a training step of Qwen3-VL-30B-A3B in MFLOP, counted from its shapes: the decoder's
     * layers by token, the vision tower by patch, the output head by target. */
    TOKEN_COST = 18250,
    PATCH_COST = 2900,
    TARGET_COST = 1867,
    MOST_CUTS = 1024, /* places for a cut that are tried; rounding leaves fewer than that */
};
static const double WORTH = 0.002; /* share of the total time that one bucket more must save */

/* Where each capacity stands in a bucket and its measure in a row, so that a loop over the fields
 * replaces eight lines at every use. */
static const struct field {
    size_t of_bucket, of_row;
    int64_t step; /* a capacity is a multiple of this; round_up handles TILE */
} fields[] = {
/* clang-format off */
#define FIELD(name, step) {offsetof(shape_bucket, name), offsetof(row_stat, name), step}
    /* clang-format on */
    FIELD(tokens, TILE),          FIELD(patches, TILE), FIELD(targets, TILE),
    FIELD(documents, COUNT_STEP), FIELD(longest, TILE), FIELD(images, COUNT_STEP),
    FIELD(frames, COUNT_STEP),    FIELD(frame, TILE),
#undef FIELD
};
enum { N_FIELDS = sizeof fields / sizeof *fields };

/* Capacity `index` of a bucket: cap_at as a pointer, cap_of as a value; of_row is measure `index`
 * of a row. */
static int64_t *cap_at(shape_bucket *bound, int index)
{
    return (int64_t *)(void *)((char *)bound + fields[index].of_bucket);
}

static int64_t cap_of(const shape_bucket *bound, int index)
{
    return *(const int64_t *)(const void *)((const char *)bound + fields[index].of_bucket);
}

static int64_t of_row(const row_stat *stat, int index)
{
    return *(const int64_t *)(const void *)((const char *)stat + fields[index].of_row);
}

static int64_t round_up(int64_t value, int64_t step, int64_t most)
{
    if (step == TILE)
        step = max_i64(most / STEPS / TILE, 1) * TILE;
    return min_i64((value + step - 1) / step * step, most);
}

static int64_t cost(int64_t tokens, int64_t patches, int64_t targets)
{
    return tokens * TOKEN_COST + patches * PATCH_COST + targets * TARGET_COST;
}

static int cheaper_first(const void *left, const void *right)
{
    const row_stat *first = (const row_stat *)left, *second = (const row_stat *)right;
    int64_t cost_x = cost(first->tokens, first->patches, first->targets);
    int64_t cost_y = cost(second->tokens, second->patches, second->targets);
    return cost_x < cost_y ? -1 : cost_x > cost_y;
}

static bool fits_bucket(const shape_bucket *bound, const row_stat *stat)
{
    for (int k = 0; k < N_FIELDS; k++)
        if (of_row(stat, k) > cap_of(bound, k))
            return false;
    return true;
}

static bool same(const shape_bucket *first, const shape_bucket *bound)
{
    for (int k = 0; k < N_FIELDS; k++)
        if (cap_of(first, k) != cap_of(bound, k))
            return false;
    return true;
}

/* A ratio: `some` of something per `tokens` tokens. denser keeps the larger of two. */
typedef struct density {
    int64_t some, tokens;
} density;

static void denser(density *means, int64_t some, int64_t tokens)
{
    if (some * means->tokens > means->some * tokens)
        *means = (density){some, tokens};
}

/* How much of it a row of `tokens` tokens can hold at most. */
static int64_t most_in(int64_t tokens, density means)
{
    return (int64_t)((__int128)tokens * means.some / means.tokens);
}

/* A bucket that holds every row of every epoch: a row has at most as many patches (images, targets,
 * frames) per token as the unit that has the most of them per token. Without packing a row is one
 * unit, so the largest of each measure is enough. */
static shape_bucket bound_of(const plan *planned)
{
    density patches = {0, 1}, targets = {0, 1}, images = {0, 1}, frames = {0, 1}, docs = {0, 1};
    shape_bucket unit = {.longest = planned->longest}; /* the most that a single unit has of each */
    for (int64_t k = 0; k < planned->n_units; k++) {
        const plan_unit *one = &planned->units[k];
        denser(&patches, one->patches, one->tokens);
        denser(&targets, one->targets, one->tokens);
        denser(&images, one->images, one->tokens);
        denser(&frames, one->frames, one->tokens);
        denser(&docs, one->n_docs, one->tokens);
        unit.tokens = max_i64(unit.tokens, one->tokens);
        unit.patches = max_i64(unit.patches, one->patches);
        unit.targets = max_i64(unit.targets, one->targets);
        unit.images = max_i64(unit.images, one->images);
        unit.frames = max_i64(unit.frames, one->frames);
        unit.frame = max_i64(unit.frame, one->frame);
        unit.documents = max_i64(unit.documents, one->n_docs);
    }
    if (!planned->conf->data_pack)
        return unit;
    const int64_t tokens = planned->token_budget;
    return (shape_bucket){
        .tokens = tokens,
        .patches = min_i64(most_in(tokens, patches) / 4 * 4, planned->patch_budget),
        .targets = most_in(tokens, targets),
        /* A branch may be shorter than the shortest sample. */
        .documents = planned->conf->data_group == GROUP_SHARED_PREFIX ? most_in(tokens, docs)
                                                                      : tokens / planned->shortest,
        .longest = unit.longest,
        .images = most_in(tokens, images),
        .frames = most_in(tokens, frames),
        .frame = unit.frame,
    };
}

/* A place where a run may end. */
typedef struct cut {
    shape_bucket bucket; /* holds all rows up to there */
    int64_t rows;        /* how many rows that is */
} cut;

/* Finds the places where the bucket of all rows so far changes. `rows` rises in predicted time.
 * Returns how many places there are. */
static int find_cuts(const row_stat *rows, int64_t n_rows, const shape_bucket *bound, cut *cuts)
{
    shape_bucket most = {0};
    int n_cuts = 0;
    for (int64_t i = 0; i < n_rows; i++) {
        shape_bucket bucket = {0};
        for (int k = 0; k < N_FIELDS; k++) {
            *cap_at(&most, k) = max_i64(cap_of(&most, k), of_row(&rows[i], k));
            *cap_at(&bucket, k) = round_up(cap_of(&most, k), fields[k].step, cap_of(bound, k));
        }
        if (n_cuts == 0 || (!same(&bucket, &cuts[n_cuts - 1].bucket) && n_cuts < MOST_CUTS))
            n_cuts++;
        cuts[n_cuts - 1] =
            (cut){bucket, i + 1}; /* after MOST_CUTS the last cut takes all further rows */
    }
    return n_cuts;
}

/* Chooses at most `most` of the `n_cuts` cuts so that the time of all rows is least. By dynamic
 * programming:
 *
 *   least[0][j] = time(j) * rows(j)
 *   least[k][j] = min over i < j of least[k - 1][i] + time(j) * (rows(j) - rows(i))
 *
 * where time(j) is that of a row padded to the bucket of cut j, least[k][j] the time of all rows up
 * to cut j in k + 1 runs, and from[k][j] the i that gave it. Writes the chosen cuts to picked[], in
 * rising order, and returns how many there are. */
static int choose_cuts(const cut *cuts, int n_cuts, int most, int *picked)
{
    static const double NEVER = 1e300;
    double least[MAX_BUCKETS][MOST_CUTS];
    int16_t from[MAX_BUCKETS][MOST_CUTS];
    int runs = 1;
    for (int k = 0; k < most; k++) {
        for (int j = 0; j < n_cuts; j++) {
            const shape_bucket *bound = &cuts[j].bucket;
            const double each = (double)cost(bound->tokens, bound->patches, bound->targets);
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
        if (k > 0 &&
            least[k][n_cuts - 1] <= least[runs - 1][n_cuts - 1] * (1 - WORTH * (k + 1 - runs)))
            runs = k + 1;
    }
    for (int k = runs - 1, j = n_cuts - 1; k >= 0; j = from[k--][j])
        picked[k] = j;
    return runs;
}

/* Counts for each bucket the rows of epoch 0 for which it is the smallest that fits. */
static void count_rows(plan *planned)
{
    for (int64_t i = 0; i < planned->n_rows; i++) {
        int k = 0;
        while (k + 1 < planned->n_buckets && !fits_bucket(&planned->buckets[k], &planned->rows[i]))
            k++;
        planned->buckets[k].rows++;
        planned->buckets[k].row_tokens += planned->rows[i].tokens;
        planned->buckets[k].row_patches += planned->rows[i].patches;
        planned->buckets[k].row_targets += planned->rows[i].targets;
    }
}

status plan_make_buckets(plan *planned)
{
    const shape_bucket bound = bound_of(planned);
    const size_t count = (size_t)planned->n_rows;
    row_stat *rows = (row_stat *)malloc((count + 1) * sizeof *rows);
    cut *cuts = (cut *)malloc(MOST_CUTS * sizeof *cuts);
    int picked[MAX_BUCKETS];
    if (!rows || !cuts) {
        free(rows);
        free(cuts);
        return FAIL(ST_NO_MEMORY, "no memory to sort %zu rows", count);
    }
    if (count)
        memcpy(rows, planned->rows, count * sizeof *rows);
    qsort(rows, count, sizeof *rows, cheaper_first);
    const int n_cuts = find_cuts(rows, planned->n_rows, &bound, cuts);
    const bool is_bound = n_cuts > 0 && same(&cuts[n_cuts - 1].bucket, &bound);
    const int n_picked = n_cuts ? choose_cuts(cuts, n_cuts, MAX_BUCKETS - !is_bound, picked) : 0;
    planned->n_buckets = 0;
    for (int k = 0; k < n_picked - is_bound; k++)
        planned->buckets[planned->n_buckets++] = cuts[picked[k]].bucket;
    planned->buckets[planned->n_buckets++] = bound;
    count_rows(planned);
    free(rows);
    free(cuts);
    return ST_OK;
}
