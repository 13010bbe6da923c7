/* pack.h: puts items into rows under two budgets, tokens and patches. Pure and deterministic.
 *
 * pack_rows takes the better of two methods. Best fit decreasing (Johnson et al., SIAM J. Comput.
 * 3, 1974: at most 11/9 of the fewest rows, for one budget) is good for few or very unequal items.
 * Completion (complete.c) fills rows of many similar items nearly to the token, where best fit
 * decreasing wastes about one item per row at the end. */
#ifndef TESSERA_PREPD_PLAN_PACK_H
#define TESSERA_PREPD_PLAN_PACK_H

#include "common/base/arena.h"
#include "common/base/status.h"

typedef struct pack_item {
    int64_t tokens, patches; /* tokens at least 1, each at most its budget */
} pack_item;

/* Writes row_of [count], the row of each item. Rows are numbered from 0 in the order in which they
 * were opened, and *out_rows is how many there are. What it takes from `scratch` it gives back.
 * INTERNAL if an item exceeds a budget. */
WARN_UNUSED status pack_rows(const pack_item *items, int64_t count, int64_t token_budget,
                             int64_t patch_budget, arena *scratch, int64_t *row_of,
                             int64_t *out_rows);
/* Moves items between the `rows` rows of a packing until no row has far fewer tokens than the mean,
 * or no move helps (level.c). The number of rows stays, and every row keeps within its budgets. */
WARN_UNUSED status pack_level(const pack_item *items, int64_t count, int64_t token_budget,
                              int64_t patch_budget, arena *scratch, int64_t *row_of, int64_t rows);
/* Exchanges items between the rows of a packing until their predicted costs are alike, or no
 * exchange helps (balance.c). A row costs what its items cost together: cost [count], at least 1.
 * `most` are the budgets, within which every row stays. The number of rows stays as well. */
WARN_UNUSED status pack_balance(const pack_item *items, const int64_t *cost, int64_t count,
                                pack_item most, arena *scratch, int64_t *row_of, int64_t rows);

#endif
