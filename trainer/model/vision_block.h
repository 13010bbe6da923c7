/* vision_block.h: one block of the vision tower, forward and backward (equations.md, "Vision
 * tower"; the formulas are repeated in vision_block.c).
 *
 * S patches, D hidden, F MLP width, Hv heads. */
#ifndef TESSERA_TRAINER_MODEL_VISION_BLOCK_H
#define TESSERA_TRAINER_MODEL_VISION_BLOCK_H

#include "trainer/device/space.h"
#include "trainer/model/layers.h"
#include "trainer/model/recompute.h"

typedef struct vision_block {
    layernorm norm1, norm2;
    linear qkv, proj, fc1, fc2;
} vision_block;

/* What backward reads besides the input x [S, D]. */
typedef struct vision_saved {
    void *mean1, *rstd1; /* [S] acc */
    void *a;             /* [S, D] LN(x) */
    void *qkv;           /* [S, 3D] q | k | v, q and k rotated */
    void *o, *lse;       /* [S, D], [S, Hv] acc: attention */
    void *x1;            /* [S, D] output of the attention half */
    void *mean2, *rstd2; /* [S] acc */
    void *m;             /* [S, D] LN(x1) */
    void *f, *g;         /* [S, F] before and after GELU */
} vision_saved;

/* Scratch that all blocks use in turn. */
typedef struct vision_scratch {
    void *wide;   /* [S, F] dg */
    void *narrow; /* [S, D] dm, do, da */
    void *dqkv;   /* [S, 3D] */
    void *work;   /* [S, Hv] acc */
} vision_scratch;

/* Finds the parameters of a block in the registry. */
void vision_block_bind(vision_block *bound, params *registry, int block);
/* Takes the arrays of these kinds (recompute.h) from sp; members of other kinds do not change. */
void vision_saved_layout(vision_saved *saved, space *sp, const shape *sizes, unsigned kinds);
void vision_scratch_layout(vision_scratch *scratch, space *sp, const shape *sizes);

/* Computes the kinds of arrays in `what` from x [S, D] and, unless y is NULL, y [S, D]. Backward
 * calls it with y NULL to compute arrays again. */
WARN_UNUSED status vision_block_fwd(const pass_context *ctx, const vision_block *block,
                                    const void *x, const vision_saved *saved, unsigned what,
                                    void *y);
/* dy [S, D] holds the gradient of the output on entry and that of the input x on return. */
WARN_UNUSED status vision_block_bwd(const pass_context *ctx, const vision_block *block,
                                    const void *x, const vision_saved *saved,
                                    const vision_scratch *scratch, void *dy);

#endif
