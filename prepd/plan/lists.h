/* lists.h: numbered nodes in lists by a small integer key, and two levels of bits that tell which
 * lists are not empty, so that the next key in use is found in a few words. Inside of packing. */
#ifndef TESSERA_PREPD_PLAN_LISTS_H
#define TESSERA_PREPD_PLAN_LISTS_H

#include "common/base/arena.h"
#include "common/base/status.h"
#include "prepd/plan/pack.h"

typedef struct lists {
    int64_t *head;  /* [n_keys] newest node of this key, -1 = none */
    int64_t *next;  /* [n_nodes] the node before it in the same list */
    uint64_t *bits; /* a bit per key */
    uint64_t *some; /* a bit per word of bits */
    int64_t n_keys, n_some;
} lists;

/* Empty lists of keys [0, n_keys) for nodes [0, n_nodes), in the arena. */
WARN_UNUSED status lists_init(lists *l, int64_t n_keys, int64_t n_nodes, arena *a);
void lists_add(lists *l, int64_t key, int64_t node);
/* Unlinks a node that follows `before` (-1 = it is the newest of its key). */
void lists_remove(lists *l, int64_t key, int64_t before, int64_t node);
/* The smallest key >= from in use; -1 if none. */
int64_t lists_next(const lists *l, int64_t from);

/* The two ways to pack; arguments as pack_rows, items checked. */
WARN_UNUSED status pack_best_fit(const pack_item *items, int64_t n, int64_t token_budget,
                                 int64_t patch_budget, arena *a, int64_t *row_of,
                                 int64_t *out_rows);
WARN_UNUSED status pack_complete(const pack_item *items, int64_t n, int64_t token_budget,
                                 int64_t patch_budget, arena *a, int64_t *row_of,
                                 int64_t *out_rows);

#endif
