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

typedef struct order {
    rng_key key;
    uint64_t n_places;
    bool shuffle;
} order;

/* The order of the `count` units of one source (lane) in an epoch. */
order order_of_epoch(uint64_t seed, int lane, uint64_t epoch, uint64_t count, bool shuffle);
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

#endif
