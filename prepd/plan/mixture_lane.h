/* mixture_lane.h: the units of one source in the order of the stream, without end: epoch after
 * epoch of its own, each a keyed permutation. Where a source must be read in pieces (tar, gzip)
 * whole pieces are permuted, and the units of a piece follow each other. A function of (seed, lane,
 * position). */
#ifndef TESSERA_PREPD_PLAN_MIXTURE_LANE_H
#define TESSERA_PREPD_PLAN_MIXTURE_LANE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

typedef struct mixture_lane {
    int number;         /* 0, 1, ...: parts of a mixture have orders of their own */
    uint64_t first, n;  /* its units: [first, first + n) */
    uint64_t per_epoch; /* units it gives to an epoch of the stream */
    uint64_t *chunks;   /* [n_chunks + 1] units before each piece, from 0 to n; NULL: no pieces */
    uint64_t n_chunks;
    /* pieces of the epoch asked for last, in its order */
    bool have_epoch;
    uint64_t epoch;
    uint64_t *start; /* [n_chunks + 1] place where the k-th begins */
    uint64_t *nth;   /* [n_chunks] which it is */
} mixture_lane;

/* The unit at a position of the lane's stream. */
WARN_UNUSED status mixture_lane_at(mixture_lane *l, uint64_t seed, bool shuffle, uint64_t position,
                                   uint64_t *out);
/* Positions of the lane in window w of n_windows of an epoch: [*out_from, *out_to). */
void mixture_lane_window(const mixture_lane *l, uint64_t epoch, uint64_t n_windows, uint64_t w,
                         uint64_t *out_from, uint64_t *out_to);
void mixture_lane_done(mixture_lane *l);

#endif
