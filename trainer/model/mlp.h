/* mlp.h: the dense SwiGLU half of a decoder layer, of dense flavours and of the layers that
 * mlp_only_layers or decoder_sparse_step leave dense (spec 1.3).
 *
 * T tokens, H hidden, F intermediate.
 *
 *   m = RMSNorm(x)    u = [m Wgt | m Wut] [T, 2F]    a = silu(gate) * up [T, F]    y = x + a Wdt */
#ifndef TESSERA_MODEL_MLP_H
#define TESSERA_MODEL_MLP_H

#include "trainer/device/space.h"
#include "trainer/model/layers.h"

typedef struct mlp {
    const param *norm; /* post_attention_layernorm [H] */
    linear gate, up, down;
} mlp;

/* Kept for backward, besides the input x [T, H]. */
typedef struct mlp_saved {
    void *rstd; /* [T] acc */
    void *m;    /* [T, H] */
    void *u;    /* [T, 2F] gate | up; replaced by its gradient in backward */
    void *a;    /* [T, F] */
} mlp_saved;

typedef struct mlp_scratch {
    void *da; /* [T, F] */
    void *dm; /* [T, H] */
} mlp_scratch;

void mlp_bind(mlp *w, params *p, int layer);
void mlp_saved_layout(mlp_saved *k, space *sp, const shape *z);
void mlp_scratch_layout(mlp_scratch *t, space *sp, const shape *z);

/* y [T, H]; NULL: only what backward needs. */
WARN_UNUSED status mlp_fwd(const run *r, const mlp *w, const void *x, const mlp_saved *k, void *y);
/* dy [T, H]: gradient of the output on entry, of x on return. */
WARN_UNUSED status mlp_bwd(const run *r, const mlp *w, const void *x, const mlp_saved *k,
                           const mlp_scratch *t, void *dy);

#endif
