/* merge.h: the mergers, which turn 2 x 2 patches into one row of the language model's width
 * (equations.md, "Vision tower"), and the way of these rows into the token stream and of their
 * gradients out of it.
 *
 * S patches, M = S / 4 merged rows, D vision hidden, W = 4 D, H text hidden, T tokens. */
#ifndef TESSERA_TRAINER_MODEL_MERGE_H
#define TESSERA_TRAINER_MODEL_MERGE_H

#include "trainer/device/space.h"
#include "trainer/model/layers.h"
#include "trainer/model/recompute.h"

typedef struct merger {
    layernorm norm;
    bool wide_norm; /* deepstack: the norm is over W, after joining; final: over D, before it */
    linear fc1, fc2;
} merger;

/* What backward reads besides the input x [S, D]. */
typedef struct merger_saved {
    void *mean, *rstd; /* [S] or [M], acc */
    void *z;           /* [M, W] normalised */
    void *f, *g;       /* [M, W] before and after GELU */
} merger_saved;

typedef struct merger_scratch {
    void *dg; /* [M, W] */
    void *dz; /* [M, W] */
} merger_scratch;

/* Finds the parameters of the final merger (index < 0) or of deepstack merger `index` in the
 * registry. */
void merger_bind(merger *block, params *registry, int index);
/* Takes the arrays of these kinds (recompute.h) from sp; members of other kinds do not change. */
void merger_saved_layout(merger_saved *saved, space *sp, const shape *sizes, unsigned kinds);
void merger_scratch_layout(merger_scratch *scratch, space *sp, const shape *sizes);

/* Computes the kinds of arrays in `what` from x [S, D] and, unless y is NULL, y [M, H]. Backward
 * calls it with y NULL to compute arrays again. */
WARN_UNUSED status merger_fwd(const pass_context *ctx, const merger *block, const void *x,
                              const merger_saved *saved, unsigned what, void *y);
/* Writes dx [S, D], or adds to it if dx_add, from dy [M, H], and adds the parameters' gradients.
 * dx may be NULL if it is not wanted. */
WARN_UNUSED status merger_bwd(const pass_context *ctx, const merger *block, const void *x,
                              const merger_saved *saved, const merger_scratch *scratch,
                              const void *dy, void *dx, bool dx_add);

/* In the next three, M counts the merged rows of all ranks that share the row, device_batch's
 * feature_rows of each.
 *
 * h [T, H]: replaces the rows of visual tokens by their merged rows of y [M, H]. */
WARN_UNUSED status merge_insert(const pass_context *ctx, const void *y, void *h);
/* h [T, H] += the merged row of y [M, H] at each visual token. scratch [T, H] is overwritten. */
WARN_UNUSED status merge_add(const pass_context *ctx, const void *y, void *h, void *scratch);
/* The backward of both: dy [M, H] = for each merged row, the sum of dh [T, H] over the tokens that
 * show it. */
WARN_UNUSED status merge_collect(const pass_context *ctx, const void *dh, void *dy);

#endif
