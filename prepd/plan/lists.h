/* lists.h: numbered nodes in linked lists, one list for each small integer key. Used by packing.
 *
 * Two levels of bits say which lists are not empty, so that the next key in use is found by looking
 * at a few words: bit k of `bits` is set if list k has a node, bit j of `some` if word j of `bits`
 * is not zero. A node is in one list at a time. */
#ifndef TESSERA_PREPD_PLAN_LISTS_H
#define TESSERA_PREPD_PLAN_LISTS_H

#include "common/base/arena.h"
#include "common/base/status.h"
#include "prepd/plan/pack.h"

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
