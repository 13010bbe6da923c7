/* SPDX-License-Identifier: Apache-2.0 */
/* slow_parts.h: what the files of the slow plan share. */
#ifndef TESSERA_TESTS_SIM_PLAN_SLOW_PARTS_H
#define TESSERA_TESTS_SIM_PLAN_SLOW_PARTS_H

#include <stdlib.h>

#include "tests/sim/plan/slow_plan.h"

/* A sample as it would stand in a row alone. */
typedef struct slow_measure {
    bool usable;
    int64_t tokens, patches;
    slow_grid *grids; /* [n_shown] */
} slow_measure;

/* A document of a unit. part: -1 for a prefix. */
typedef struct slow_part {
    int64_t sample, part, tokens;
} slow_part;

/* What is permuted and packed as a whole. */
typedef struct slow_unit {
    slow_part *docs; /* [n_docs] owned */
    int64_t n_docs, tokens, patches;
    int64_t prefix; /* tokens of its first document, if that is a prefix */
} slow_unit;

typedef struct slow_units {
    slow_unit *all; /* [count] */
    int64_t count;
} slow_units;

struct slow_plan {
    const slow_data *data;
    const conf *options;
    slow_kind kind;
    uint64_t seed;
    int64_t budget, patch_budget; /* of a row */
    slow_measure *measure;        /* [n_samples] */
    slow_units units;
    slow_row **rows; /* [n_rows] what is planned so far */
    uint64_t n_rows;
    uint64_t n_epochs; /* planned so far */
    uint64_t end;      /* UINT64_MAX: none */
};

/* Memory of zeros; ends the process if there is none. */
static inline void *slow_memory(int64_t count, size_t size)
{
    void *made = calloc((size_t)count + 1, size);
    if (!made)
        abort();
    return made;
}

static inline int64_t slow_least(int64_t one, int64_t other)
{
    return one < other ? one : other;
}

/* slow_numbers.c: random numbers (common/base/rng.h), and where a permutation puts `place`. */
uint64_t slow_draw(uint64_t seed, const char *purpose, uint64_t counter);
uint64_t slow_permute(uint64_t seed, const char *purpose, uint64_t count, uint64_t place);

/* slow_assign.c: assign_cost. */
int64_t slow_cost(int64_t tokens, int64_t patches, int64_t squares);

/* slow_units.c: whether two samples show the same pictures at the same sizes. */
bool slow_same_pictures(const slow_plan *plan, int64_t one, int64_t other);
slow_unit *slow_units_add(slow_units *units);
void slow_unit_add(slow_unit *unit, slow_part doc);
/* Fills `measure` and `units`. */
void slow_plan_units(slow_plan *plan);
/* slow_prefixes.c: joins units of one document each into units with prefixes. */
slow_units slow_prefixes(const slow_plan *plan, const slow_units *alone);
void slow_units_free(slow_units *units);

/* What is packed. */
typedef struct slow_items {
    const slow_unit *const *unit; /* [count] */
    int64_t count;
    int64_t *row; /* [count] the row of each */
    int64_t rows;
} slow_items;

/* slow_pack.c: puts items into rows of these budgets. An item of more tokens counts as `budget`. */
void slow_pack(slow_items *inout, int64_t budget, int64_t patch_budget);
/* slow_level.c: evens out the tokens of the rows. */
void slow_level(slow_items *inout, int64_t budget, int64_t patch_budget);
/* slow_balance.c: evens out their costs. */
void slow_balance(slow_items *inout, int64_t budget, int64_t patch_budget);
int64_t slow_unit_squares(const slow_unit *unit);

#endif
