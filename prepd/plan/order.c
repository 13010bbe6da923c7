/* SPDX-License-Identifier: Apache-2.0 */
/* order.c: the keyed permutations of a stream. Each has its own purpose text, so that no two
 * of them share a key. These texts are part of PLAN_VERSION: another text is another stream. */
#include "prepd/plan/order.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* The order of the `count` units of one source (lane) in an epoch. */
static order order_of_epoch(uint64_t seed, int lane, uint64_t epoch, uint64_t count, bool shuffle)
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

/* Which unit stands at a position of a lane. Without pieces it is one permutation
 * of the units per pass. With pieces, the pieces are permuted, and a position is found among them
 * by bisection. The order is kept for the pass that was asked for last. */

static order chunk_order(const mixture_lane *lane, uint64_t seed, uint64_t epoch, bool shuffle)
{
    char purpose[64];
    snprintf(purpose, sizeof purpose, "chunks/%d/%" PRIu64, lane->number, epoch);
    return (order){rng_key_make(seed, purpose), lane->n_chunks, shuffle};
}

static status order_chunks(mixture_lane *lane, uint64_t seed, bool shuffle, uint64_t epoch)
{
    if (!lane->start) {
        lane->start = (uint64_t *)malloc(((size_t)lane->n_chunks + 1) * sizeof *lane->start);
        lane->nth = (uint64_t *)malloc(((size_t)lane->n_chunks + 1) * sizeof *lane->nth);
        if (!lane->start || !lane->nth)
            return FAIL(ST_NO_MEMORY, "no memory to order %" PRIu64 " pieces", lane->n_chunks);
    }
    const order places = chunk_order(lane, seed, epoch, shuffle);
    uint64_t place = 0;
    for (uint64_t k = 0; k < lane->n_chunks; k++) {
        const uint64_t chunk = order_at(&places, k);
        lane->start[k] = place;
        lane->nth[k] = chunk;
        place += lane->chunks[chunk + 1] - lane->chunks[chunk];
    }
    lane->start[lane->n_chunks] = place;
    lane->epoch = epoch;
    lane->have_epoch = true;
    return ST_OK;
}

status mixture_lane_at(mixture_lane *lane, uint64_t seed, bool shuffle, uint64_t position,
                       uint64_t *out)
{
    const uint64_t epoch = position / lane->n_units, place = position % lane->n_units;
    if (!lane->chunks) {
        if (!lane->have_epoch || lane->epoch != epoch) {
            lane->units = order_of_epoch(seed, lane->number, epoch, lane->n_units, shuffle);
            lane->epoch = epoch;
            lane->have_epoch = true;
        }
        *out = lane->first + order_at(&lane->units, place);
        return ST_OK;
    }
    if (!lane->have_epoch || lane->epoch != epoch)
        TRY(order_chunks(lane, seed, shuffle, epoch));
    uint64_t low = 0, high = lane->n_chunks; /* start[low] <= place < start[high] */
    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        if (lane->start[middle] <= place)
            low = middle;
        else
            high = middle;
    }
    *out = lane->first + lane->chunks[lane->nth[low]] + (place - lane->start[low]);
    return ST_OK;
}

void mixture_lane_window(const mixture_lane *lane, uint64_t epoch, uint64_t n_windows,
                         uint64_t window, uint64_t *out_from, uint64_t *out_to)
{
    const uint64_t begin = epoch * lane->per_epoch;
    *out_from = begin + order_window_begin(lane->per_epoch, n_windows, window);
    *out_to = begin + order_window_begin(lane->per_epoch, n_windows, window + 1);
}

void mixture_lane_done(mixture_lane *lane)
{
    free(lane->chunks);
    free(lane->start);
    free(lane->nth);
    *lane = (mixture_lane){0};
}
