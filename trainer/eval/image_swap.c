/* SPDX-License-Identifier: Apache-2.0 */
/* image_swap.c: pictures by grid; and of all pairs of replies to the same question, the share that
 * agree: with c replies of a kind among n to a question, c (c - 1) / (n (n - 1)) summed over the
 * kinds. Unlike the share of the commonest reply it is not too high where a question occurs only a
 * few times. */
#include "trainer/eval/image_swap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "trainer/generate/prompt.h"

enum { MAX_GRIDS = 4096 }; /* more than a preprocessor makes; pictures of further grids stay */

typedef struct lent_grid {
    int32_t grid[3];
    uint8_t *current, *other; /* other is NULL until there is a second picture */
} lent_grid;

struct image_swap {
    lent_grid grids[MAX_GRIDS];
    int64_t count;
};

status image_swap_new(image_swap **out)
{
    *out = calloc(1, sizeof **out);
    return *out ? ST_OK : FAIL(ST_NO_MEMORY, "image swap: out of memory");
}

void image_swap_free(image_swap **held)
{
    image_swap *swap = *held;
    if (!swap)
        return;
    for (int64_t i = 0; i < swap->count; i++) {
        free(swap->grids[i].current);
        free(swap->grids[i].other);
    }
    free(swap);
    *held = NULL;
}

static status copy_of(const uint8_t *pixels, size_t bytes, uint8_t **out)
{
    *out = malloc(bytes ? bytes : 1);
    if (!*out)
        return FAIL(ST_NO_MEMORY, "image swap: out of memory");
    memcpy(*out, pixels, bytes);
    return ST_OK;
}

/* Finds the grid's entry, or makes it; NULL if the table is full. */
static lent_grid *entry_of(image_swap *swap, const int32_t *grid)
{
    int64_t i = 0;
    while (i < swap->count && memcmp(swap->grids[i].grid, grid, sizeof swap->grids[i].grid) != 0)
        i++;
    if (i == MAX_GRIDS)
        return NULL;
    if (i == swap->count) {
        memcpy(swap->grids[i].grid, grid, sizeof swap->grids[i].grid);
        swap->count++;
    }
    return &swap->grids[i];
}

/* Writes another picture of this grid over pixels; *out_lent is false if there is none yet. */
static status exchange_one(image_swap *swap, const int32_t *grid, uint8_t *pixels, size_t bytes,
                           bool *out_lent)
{
    lent_grid *lent = entry_of(swap, grid);
    *out_lent = false;
    if (!lent)
        return ST_OK;
    if (!lent->current)
        return copy_of(pixels, bytes, &lent->current);
    if (memcmp(lent->current, pixels, bytes) != 0) {
        uint8_t *seen;
        TRY(copy_of(pixels, bytes, &seen));
        free(lent->other);
        lent->other = lent->current;
        lent->current = seen;
    }
    if (lent->other) {
        memcpy(pixels, lent->other, bytes);
        *out_lent = true;
    }
    return ST_OK;
}

status image_swap_exchange(image_swap *swap, row *packed, bool *lent)
{
    const int64_t unit = MERGE_SIDE * MERGE_SIDE;
    int64_t n_merged = packed->n_patches / unit, patch = 0;
    /* has [n_merged]: was the picture of this merged row exchanged? */
    bool *has = calloc((size_t)(n_merged + 1), sizeof *has);
    if (!has)
        return FAIL(ST_NO_MEMORY, "image swap: out of memory");
    status st = ST_OK;
    for (int64_t i = 0; i < packed->n_items; i++) {
        const int32_t *grid_thw = &packed->grid_thw[3 * i];
        int64_t patches = (int64_t)grid_thw[0] * grid_thw[1] * grid_thw[2];
        bool ok;
        TRY_OR(done, exchange_one(swap, grid_thw, packed->pixels + patch * PATCH_BYTES,
                                  (size_t)patches * PATCH_BYTES, &ok));
        for (int64_t j = patch / unit; j < (patch + patches) / unit; j++)
            has[j] = ok;
        patch += patches;
    }
    for (int64_t doc = 0; doc < packed->n_docs; doc++) {
        bool any = false, all = true;
        for (int64_t i = 0; i < sample_tokens(packed, doc); i++) {
            const int32_t shown = packed->visual_row[sample_token(packed, doc, i)];
            any = any || shown >= 0;
            all = all && (shown < 0 || has[shown]);
        }
        lent[doc] = any && all;
    }
done:
    free(has);
    return st;
}

/* The hash of the text tokens [begin, end) of a document's sample: visual tokens, whose number
 * differs between pictures, are left out. */
static status hash_text(const row *packed, int64_t doc, int64_t begin, int64_t end, uint64_t *out)
{
    int32_t *ids = malloc((size_t)(end - begin + 1) * sizeof *ids);
    size_t count = 0;
    if (!ids)
        return FAIL(ST_NO_MEMORY, "chance: out of memory");
    for (int64_t i = begin; i < end; i++) {
        const int64_t token = sample_token(packed, doc, i);
        if (packed->visual_row[token] < 0)
            ids[count++] = packed->input_ids[token];
    }
    const hash128 hash = hash_bytes(ids, count * sizeof *ids);
    memcpy(out, hash.bytes, sizeof *out);
    free(ids);
    return ST_OK;
}

static bool shows_picture(const row *packed, int64_t doc)
{
    for (int64_t i = 0; i < sample_tokens(packed, doc); i++)
        if (packed->visual_row[sample_token(packed, doc, i)] >= 0)
            return true;
    return false;
}

static status make_room(chance *all, int64_t count)
{
    if (all->count + count <= all->capacity)
        return ST_OK;
    const int64_t capacity = 2 * (all->count + count);
    chance_entry *more = realloc(all->list, (size_t)capacity * sizeof *more);
    if (!more)
        return FAIL(ST_NO_MEMORY, "chance: out of memory");
    all->list = more;
    all->capacity = capacity;
    return ST_OK;
}

status chance_add(chance *all, const row *packed, const reply *replies, int64_t count)
{
    TRY(make_room(all, count));
    for (int64_t i = 0; i < count; i++) {
        const reply *at = &replies[i];
        if (!shows_picture(packed, at->doc))
            continue;
        chance_entry *entry = &all->list[all->count];
        const int64_t begin = sample_index(packed, at->doc, at->begin);
        TRY(hash_text(packed, at->doc, 0, begin, &entry->question));
        TRY(hash_text(packed, at->doc, begin, begin + at->end - at->begin, &entry->answer));
        all->count++;
    }
    return ST_OK;
}

static int by_question_then_answer(const void *left, const void *right)
{
    const chance_entry *first = left, *second = right;
    if (first->question != second->question)
        return first->question < second->question ? -1 : 1;
    return (first->answer > second->answer) - (first->answer < second->answer);
}

/* How many entries from `first` on have the same question and, if asked, the same answer. */
static int64_t count_alike(const chance *all, int64_t first, bool and_answer)
{
    const chance_entry *is = &all->list[first];
    int64_t i = first;
    while (i < all->count && all->list[i].question == is->question &&
           (!and_answer || all->list[i].answer == is->answer))
        i++;
    return i - first;
}

double chance_percent(chance *all)
{
    int64_t repeated = 0;
    double right = 0;
    if (all->count > 0)
        qsort(all->list, (size_t)all->count, sizeof *all->list, by_question_then_answer);
    for (int64_t first = 0, j; first < all->count; first += j) {
        j = count_alike(all, first, false);
        if (j < 2)
            continue;
        repeated += j;
        for (int64_t i = first, k; i < first + j; i += k) {
            k = count_alike(all, i, true);
            right += (double)(k * (k - 1)) / (double)(j - 1);
        }
    }
    return all->count > 0 && 10 * repeated >= 9 * all->count ? 100 * right / (double)repeated : NAN;
}

void chance_done(chance *all)
{
    free(all->list);
    *all = (chance){0};
}
