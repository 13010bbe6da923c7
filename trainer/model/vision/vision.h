/* SPDX-License-Identifier: Apache-2.0 */
/* vision.h: the vision tower, forward and backward (equations.md, "Vision tower"): turns pixels
 * into visual rows for the token stream and one deepstack feature for each chosen block. Its blocks
 * and mergers come first.
 *
 * S patches, D hidden, d head width, F MLP width, Hv heads, M = S / 4 merged rows, W = 4 D, H text
 * hidden, T tokens, B blocks. Patches lie in merge order, so merging four of them into a row is a
 * reshape. */
#ifndef TESSERA_TRAINER_MODEL_VISION_H
#define TESSERA_TRAINER_MODEL_VISION_H

#include "trainer/device/space.h"
#include "trainer/model/layers/layers.h"
#include "trainer/model/layers/recompute.h"

/* ---- a block (the formulas are repeated in vision_block.c) ---- */

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

/* ---- the mergers, which turn 2 x 2 patches into one row of the language model's width, and the
 * way of these rows into the token stream and of their gradients out of it ---- */

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

/* ---- the tower ---- */

typedef struct vision {
    /* parameters */
    linear patch; /* [D, 1536] */
    const param *pos;
    vision_block *block;              /* [B] */
    merger merger[1 + MAX_DEEPSTACK]; /* 0: the final merger; 1 + j: deepstack merger j */
    bool embed_trained;               /* patch embedding or position table are trained */
    int64_t lowest;                   /* first block that backward must reach; B: none */
    /* activations */
    recompute recomputed;        /* what blocks compute again */
    recompute merger_recomputed; /* what mergers compute again */
    void **x;                    /* [B + 1] of [S, D]: inputs of the blocks, then the last output */
    vision_saved *saved;         /* [B]; arrays that are computed again lie in shared memory */
    merger_saved merger_saved[1 + MAX_DEEPSTACK];
    void *cos, *sin;                   /* [S, d/2] acc */
    void *patches;                     /* [S, 1536] scratch: normalised pixels */
    void *feature[1 + MAX_DEEPSTACK];  /* [M, H]: visual rows, then deepstack features */
    void *dfeature[1 + MAX_DEEPSTACK]; /* [M, H]: their gradients, written by decoder_bwd */
    void *dx;                          /* [S, D] gradient on its way down */
    vision_scratch block_scratch;
    merger_scratch merger_scratch;
} vision;

typedef struct vision_modes {
    bool training; /* inputs of all blocks are kept, and gradients are computed */
    recompute recomputed;
    bool frozen; /* only mergers are trained: of the tower only their inputs are kept */
} vision_modes;

/* Prepares a tower (heap memory only). */
WARN_UNUSED status vision_init(vision *tower, const model_dims *dims);
/* Finds its parameters in the registry, and how far down backward must go. */
void vision_bind(vision *tower, params *registry, const model_dims *dims);
void vision_done(vision *tower); /* accepts a half-initialised tower */
/* Take the device arrays from sp: vision_layout those that are kept from forward to backward,
 * vision_layout_scratch those that may share memory with other parts' scratch. */
void vision_layout(vision *tower, space *sp, const shape *sizes, vision_modes mode);
void vision_layout_scratch(vision *tower, space *sp, const shape *sizes, vision_modes mode);

/* Computes tower->feature from the pixels of the batch and sets the rotary tables of ctx. Without
 * patches it only enters and leaves FSDP units, as every rank must. */
WARN_UNUSED status vision_fwd(vision *tower, pass_context *ctx);
/* Adds the gradients of all trained vision parameters, from tower->dfeature. */
WARN_UNUSED status vision_bwd(vision *tower, pass_context *ctx);

#endif
