/* mlp.h: the dense SwiGLU half of a decoder layer, of dense flavours and of the layers that
 * mlp_only_layers or decoder_sparse_step leave dense (spec 1.3).
 *
 * T tokens, H hidden, F intermediate. Of several ranks: T tokens of this rank, Tc of its tensor
 * peers together, and F is this rank's part, as in attention_block.h.
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

/* Kept for backward, besides the input x [T, H]. */
typedef struct mlp_saved {
    void *rstd; /* [T] acc */
    void *m;    /* [T, H] */
    void *u;    /* [Tc, 2F] gate | up; replaced by its gradient in backward */
    void *a;    /* [Tc, F] */
} mlp_saved;

typedef struct mlp_scratch {
    void *wide; /* [Tc, H], of several tensor ranks */
    void *da;   /* [Tc, F] */
    void *dm;   /* [Tc, H] */
} mlp_scratch;

void mlp_bind(mlp *w, params *p, int layer);
/* Arrays of these kinds (recompute.h) alone; the others stay as they are. */
void mlp_saved_layout(mlp_saved *k, space *sp, const shape *z, unsigned kinds);
void mlp_scratch_layout(mlp_scratch *t, space *sp, const shape *z, bool training);

/* y [T, H]; NULL: only the kinds of arrays in what, again for backward. */
WARN_UNUSED status mlp_fwd(const pass_context *r, const mlp *w, const void *x, const mlp_saved *k,
                           const mlp_scratch *t, unsigned what, void *y);
/* dy [T, H]: gradient of the output on entry, of x on return. */
WARN_UNUSED status mlp_bwd(const pass_context *r, const mlp *w, const void *x, const mlp_saved *k,
                           const mlp_scratch *t, void *dy);

#endif
