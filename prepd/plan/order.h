/* order.h: which unit stands where in an epoch: a keyed permutation, computed, not stored, cut
 * into windows of nearly equal size. A function of (seed, epoch, number of samples) alone. */
#ifndef TESSERA_PREPD_PLAN_ORDER_H
#define TESSERA_PREPD_PLAN_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/rng.h"

typedef struct order {
    rng_key key;
    uint64_t n;
    bool shuffle;
} order;

order order_of_epoch(uint64_t seed, int lane, uint64_t epoch, uint64_t n, bool shuffle);
/* The item at a place of the epoch; a bijection of [0, n). */
uint64_t order_at(const order *o, uint64_t place);

/* Windows of at most `window` items; 1 at least. */
uint64_t order_windows(uint64_t n, uint64_t window);
/* First place of window w; of window n_windows: n. */
uint64_t order_window_begin(uint64_t n, uint64_t n_windows, uint64_t w);

/* Where a window takes from several lanes or from pieces, what it holds is permuted once more. */
order order_of_window(uint64_t seed, uint64_t epoch, uint64_t window, uint64_t n, bool shuffle);

/* The rows of a window are permuted too, or long rows would come first. */
order order_of_rows(uint64_t seed, uint64_t epoch, uint64_t window, uint64_t rows, bool shuffle);

#endif
