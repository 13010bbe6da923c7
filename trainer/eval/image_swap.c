/* image_swap.c: keeps two pictures per grid, and writes the other one over a picture. */
#include "trainer/eval/image_swap.h"

#include <stdlib.h>
#include <string.h>

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
