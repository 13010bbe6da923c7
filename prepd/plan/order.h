/* SPDX-License-Identifier: Apache-2.0 */
/* order.h: which unit stands where in an epoch.
 *
 * An order is a keyed permutation of [0, n_places) that is computed and never stored (rng_permute),
 * so it costs no memory and any place can be asked for. It depends on its arguments alone. Without
 * data.shuffle every order is the identity. An epoch is cut into windows of nearly equal size. */
#ifndef TESSERA_PREPD_PLAN_ORDER_H
#define TESSERA_PREPD_PLAN_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/rng.h"
#include "common/base/status.h"

typedef struct order {
    rng_key key;
    uint64_t n_places;
    bool shuffle;
} order;

/* Which item stands at a place; a bijection of [0, n_places). */
uint64_t order_at(const order *order, uint64_t place);

/* How many windows of at most `window` items `count` items make; at least 1. */
uint64_t order_windows(uint64_t count, uint64_t window);
/* The first place of window `which`; order_window_begin(count, n_windows, n_windows) is `count`. */
uint64_t order_window_begin(uint64_t count, uint64_t n_windows, uint64_t which);

/* The order of the `count` items within a window. It is used where a window takes from several
 * sources or from a source that is read in pieces, which would otherwise follow each other. */
order order_of_window(uint64_t seed, uint64_t epoch, uint64_t window, uint64_t count, bool shuffle);

/* The order of a window's rows. Without it the rows that packing fills first, which hold the
 * longest units, would always come first. */
order order_of_rows(uint64_t seed, uint64_t epoch, uint64_t window, uint64_t rows, bool shuffle);

/* The units of one source of a mixture, in the order in which the stream takes
 * them.
 *
 * A lane is without end: it runs through its units again and again, each pass a keyed permutation
 * of its own. A source that must be read in pieces (a tar shard, a gzip member) is permuted piece
 * by piece, and the units of a piece follow each other. What stands at a position depends on the
 * seed, the lane's number and the position alone. */

typedef struct mixture_lane {
    int number; /* 0, 1, ...: goes into the key, so that sources have different orders */
    uint64_t first, n_units; /* its units are [first, first + n_units) of the plan's */
    uint64_t per_epoch;      /* units that an epoch of the stream takes from it */
    uint64_t *chunks;        /* [n_chunks + 1] units before each piece, from 0 to n_units; NULL if
                              * any place can be read */
    uint64_t n_chunks;
    /* Of the pass asked for last: the order of its units, or of its pieces. */
    bool have_epoch;
    uint64_t epoch;
    order units;
    uint64_t *start; /* [n_chunks + 1] place where the k-th of them begins */
    uint64_t *nth;   /* [n_chunks] which piece it is */
} mixture_lane;

/* The unit at a position of the lane, as a position in the plan's units. Only fails without memory
 * for the pieces. */
WARN_UNUSED status mixture_lane_at(mixture_lane *lane, uint64_t seed, bool shuffle,
                                   uint64_t position, uint64_t *out);
/* The positions that window `window` (of n_windows) of an epoch takes: [*out_from, *out_to). */
void mixture_lane_window(const mixture_lane *lane, uint64_t epoch, uint64_t n_windows,
                         uint64_t window, uint64_t *out_from, uint64_t *out_to);
void mixture_lane_done(mixture_lane *lane);

#endif
