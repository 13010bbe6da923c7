/* merge.h: merged rows of the language model's width from 2x2 patches (spec 3.6): the final merger
 * and the deepstack mergers. And their rows into, and gradients out of, the token stream.
 *
 * S patches, M = S/4 merged rows, D vision hidden, W = 4D, H text hidden. */
#ifndef TESSERA_TRAINER_MODEL_MERGE_H
#define TESSERA_TRAINER_MODEL_MERGE_H

#include "trainer/device/space.h"
#include "trainer/model/layers.h"
#include "trainer/model/recompute.h"

typedef struct merger {
    layernorm norm;
    bool wide_norm; /* over W after the shuffle (deepstack), else over D before it (final) */
    linear fc1, fc2;
} merger;

/* What a merger keeps for its backward, besides its input x [S, D]. */
typedef struct merger_saved {
    void *mean, *rstd; /* [S] or [M], acc */
    void *z;           /* [M, W] normalised */
    void *f, *g;       /* [M, W] before and after GELU */
} merger_saved;

typedef struct merger_scratch {
    void *dg; /* [M, W] */
    void *dz; /* [M, W] */
} merger_scratch;

/* j < 0: the final merger, else deepstack merger j */
void merger_bind(merger *w, params *p, int j);
/* Arrays of these kinds (recompute.h) alone; the others stay as they are. */
void merger_saved_layout(merger_saved *k, space *sp, const shape *z, unsigned kinds);
void merger_scratch_layout(merger_scratch *t, space *sp, const shape *z);

/* y [M, H] from x [S, D]; y NULL: only the kinds of arrays in what, again for backward. */
WARN_UNUSED status merger_fwd(const pass_context *r, const merger *w, const void *x,
                              const merger_saved *k, unsigned what, void *y);
/* dx [S, D] written, or added to where dx_add, from dy [M, H]; NULL: not wanted. */
WARN_UNUSED status merger_bwd(const pass_context *r, const merger *w, const void *x,
                              const merger_saved *k, const merger_scratch *t, const void *dy,
                              void *dx, bool dx_add);

/* M below: merged rows of all ranks of the row (device_batch.feature_rows each).
 * h [T, H]: rows at visual tokens become their merged row of y [M, H] (spec 4.1). */
WARN_UNUSED status merge_insert(const pass_context *r, const void *y, void *h);
/* h [T, H] += the merged row of y [M, H] at visual tokens; scratch [T, H]. */
WARN_UNUSED status merge_add(const pass_context *r, const void *y, void *h, void *scratch);
/* dy [M, H] = the sum of dh [T, H] over the tokens that show each merged row: the backward of
 * both. */
WARN_UNUSED status merge_collect(const pass_context *r, const void *dh, void *dy);

#endif
