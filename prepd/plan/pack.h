/* SPDX-License-Identifier: Apache-2.0 */
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

/* Numbered nodes in linked lists, one list for each small integer key. Used by packing.
 *
 * Two levels of bits say which lists are not empty, so that the next key in use is found by looking
 * at a few words: bit k of `bits` is set if list k has a node, bit j of `some` if word j of `bits`
 * is not zero. A node is in one list at a time. */

typedef struct lists {
    int64_t *head;  /* [n_keys] the node of this key that was added last; -1 if there is none */
    int64_t *next;  /* [n_nodes] the node that was added to the same list before this one */
    uint64_t *bits; /* a bit per key */
    uint64_t *some; /* a bit per word of bits */
    int64_t n_keys, n_some;
} lists;

/* Makes empty lists for keys [0, n_keys) and nodes [0, n_nodes), in `memory`. */
WARN_UNUSED status lists_init(lists *lists, int64_t n_keys, int64_t n_nodes, arena *memory);
void lists_add(lists *lists, int64_t key, int64_t node);
/* Unlinks a node. `before` is the node whose `next` it is, or -1 if it is the head of its list. */
void lists_remove(lists *lists, int64_t key, int64_t before, int64_t node);
/* The smallest key in use that is at least `from`; -1 if there is none. */
int64_t lists_next(const lists *lists, int64_t from);

/* The two methods of pack_rows, with its arguments, on items that are known to be within the
 * budgets. What they take from `memory` stays there. */
WARN_UNUSED status pack_best_fit(const pack_item *items, int64_t count, int64_t token_budget,
                                 int64_t patch_budget, arena *memory, int64_t *row_of,
                                 int64_t *out_rows);
WARN_UNUSED status pack_complete(const pack_item *items, int64_t count, int64_t token_budget,
                                 int64_t patch_budget, arena *memory, int64_t *row_of,
                                 int64_t *out_rows);

#endif
