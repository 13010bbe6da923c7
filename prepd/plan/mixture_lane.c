/* mixture_lane.c: which unit stands at a position of a lane. Without pieces it is one permutation
 * of the units per pass. With pieces, the pieces are permuted, and a position is found among them
 * by bisection; the pieces' order is kept for the pass that was asked for last. */
#include "prepd/plan/mixture_lane.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "prepd/plan/order.h"

static order chunk_order(const mixture_lane *l, uint64_t seed, uint64_t epoch, bool shuffle)
{
    char purpose[64];
    snprintf(purpose, sizeof purpose, "chunks/%d/%" PRIu64, l->number, epoch);
    return (order){rng_key_make(seed, purpose), l->n_chunks, shuffle};
}

static status order_chunks(mixture_lane *l, uint64_t seed, bool shuffle, uint64_t epoch)
{
    if (!l->start) {
        l->start = (uint64_t *)malloc(((size_t)l->n_chunks + 1) * sizeof *l->start);
        l->nth = (uint64_t *)malloc(((size_t)l->n_chunks + 1) * sizeof *l->nth);
        if (!l->start || !l->nth)
            return FAIL(ST_NO_MEMORY, "no memory to order %" PRIu64 " pieces", l->n_chunks);
    }
    const order o = chunk_order(l, seed, epoch, shuffle);
    uint64_t place = 0;
    for (uint64_t k = 0; k < l->n_chunks; k++) {
        const uint64_t c = order_at(&o, k);
        l->start[k] = place;
        l->nth[k] = c;
        place += l->chunks[c + 1] - l->chunks[c];
    }
    l->start[l->n_chunks] = place;
    l->epoch = epoch;
    l->have_epoch = true;
    return ST_OK;
}

status mixture_lane_at(mixture_lane *l, uint64_t seed, bool shuffle, uint64_t position,
                       uint64_t *out)
{
    const uint64_t epoch = position / l->n_units, place = position % l->n_units;
    if (!l->chunks) {
        const order o = order_of_epoch(seed, l->number, epoch, l->n_units, shuffle);
        *out = l->first + order_at(&o, place);
        return ST_OK;
    }
    if (!l->have_epoch || l->epoch != epoch)
        TRY(order_chunks(l, seed, shuffle, epoch));
    uint64_t low = 0, high = l->n_chunks; /* start[low] <= place < start[high] */
    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        if (l->start[middle] <= place)
            low = middle;
        else
            high = middle;
    }
    *out = l->first + l->chunks[l->nth[low]] + (place - l->start[low]);
    return ST_OK;
}

void mixture_lane_window(const mixture_lane *l, uint64_t epoch, uint64_t n_windows, uint64_t w,
                         uint64_t *out_from, uint64_t *out_to)
{
    const uint64_t begin = epoch * l->per_epoch;
    *out_from = begin + order_window_begin(l->per_epoch, n_windows, w);
    *out_to = begin + order_window_begin(l->per_epoch, n_windows, w + 1);
}

void mixture_lane_done(mixture_lane *l)
{
    free(l->chunks);
    free(l->start);
    free(l->nth);
    *l = (mixture_lane){0};
}
