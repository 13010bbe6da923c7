/* mlp.h: the dense SwiGLU half of a decoder layer, forward and backward. Dense models have it in
 * all layers, others in the layers that mlp_only_layers or decoder_sparse_step leave dense.
 *
 * T tokens, H hidden, F intermediate width. With several ranks, T counts the tokens of this rank
 * and Tc those of all its tensor ranks, and F is this rank's part of the width, as in
 * attention_block.h.
 *
 *   m = RMSNorm(x)    u = [m Wgt | m Wut] [T, 2F]    a = silu(gate) * up [T, F]    y = x + a Wdt */
#ifndef TESSERA_TRAINER_MODEL_MLP_H
#define TESSERA_TRAINER_MODEL_MLP_H

#include "trainer/device/space.h"
#include "trainer/model/layers.h"
#include "trainer/model/recompute.h"

typedef struct mlp {
    int64_t layer;
    const param *norm; /* post_attention_layernorm [H] */
    linear gate, up, down;
} mlp;

/* What backward reads besides the input x [T, H]. */
typedef struct mlp_saved {
    void *rstd; /* [T] acc */
    void *m;    /* [T, H] */
    void *u;    /* [Tc, 2F] gate | up, overwritten by its gradient in backward */
    void *a;    /* [Tc, F] */
} mlp_saved;

/* Scratch that all layers use in turn. */
typedef struct mlp_scratch {
    void *wide; /* [Tc, H], with several tensor ranks */
    void *da;   /* [Tc, F] */
    void *dm;   /* [Tc, H] */
} mlp_scratch;

/* Finds the parameters of a layer in the registry. */
void mlp_bind(mlp *block, params *registry, int layer);
/* Takes the arrays of these kinds (recompute.h) from sp; members of other kinds do not change. */
void mlp_saved_layout(mlp_saved *saved, space *sp, const shape *sizes, unsigned kinds);
/* Takes the scratch from sp. training: with what backward needs. */
void mlp_scratch_layout(mlp_scratch *scratch, space *sp, const shape *sizes, bool training);

/* Computes the kinds of arrays in `what` and, unless y is NULL, y [T, H]. Backward calls it with y
 * NULL to compute arrays again. */
WARN_UNUSED status mlp_fwd(const pass_context *ctx, const mlp *block, const void *x,
                           const mlp_saved *saved, const mlp_scratch *scratch, unsigned what,
                           void *y);
/* dy [T, H] holds the gradient of the output on entry and that of x on return. */
WARN_UNUSED status mlp_bwd(const pass_context *ctx, const mlp *block, const void *x,
                           const mlp_saved *saved, const mlp_scratch *scratch, void *dy);

#endif
