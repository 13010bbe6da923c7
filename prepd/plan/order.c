/* order.c: the keyed permutations of a stream. Each has a purpose text of its own, so that no two
 * of them share a key. These texts are part of PLAN_VERSION: another text is another stream. */
#include "prepd/plan/order.h"

#include <inttypes.h>
#include <stdio.h>

order order_of_epoch(uint64_t seed, int lane, uint64_t epoch, uint64_t count, bool shuffle)
{
    char purpose[64];
    if (lane)
        snprintf(purpose, sizeof purpose, "order/%d/%" PRIu64, lane, epoch);
    else
        snprintf(purpose, sizeof purpose, "order/%" PRIu64, epoch);
    return (order){rng_key_make(seed, purpose), count, shuffle};
}

order order_of_window(uint64_t seed, uint64_t epoch, uint64_t window, uint64_t count, bool shuffle)
{
    char purpose[64];
    snprintf(purpose, sizeof purpose, "window/%" PRIu64 "/%" PRIu64, epoch, window);
    return (order){rng_key_make(seed, purpose), count, shuffle};
}

uint64_t order_at(const order *places, uint64_t place)
{
    return places->shuffle ? rng_permute(places->key, places->n_places, place) : place;
}

uint64_t order_windows(uint64_t count, uint64_t window)
{
    return count ? (count - 1) / window + 1 : 1;
}

uint64_t order_window_begin(uint64_t count, uint64_t n_windows, uint64_t which)
{
    /* All windows are nearly equal: a small rest at the end would pack badly. */
    return (uint64_t)((unsigned __int128)count * which / n_windows);
}

order order_of_rows(uint64_t seed, uint64_t epoch, uint64_t window, uint64_t rows, bool shuffle)
{
    char purpose[64];
    snprintf(purpose, sizeof purpose, "rows/%" PRIu64 "/%" PRIu64, epoch, window);
    return (order){rng_key_make(seed, purpose), rows, shuffle};
}
