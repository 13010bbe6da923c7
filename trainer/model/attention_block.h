/* attention_block.h: the attention half of a decoder layer (spec 4.2), forward and backward.
 *
 * T tokens, H hidden, Q query heads, C key-value heads, d head_dim. Maths in attention_block.c. */
#ifndef TESSERA_MODEL_ATTENTION_BLOCK_H
#define TESSERA_MODEL_ATTENTION_BLOCK_H

#include "trainer/device/space.h"
#include "trainer/model/layers.h"

typedef struct attention_block {
    int64_t layer;
    const param *norm; /* input_layernorm [H] */
    linear q, k, v, o;
    const param *q_norm, *k_norm; /* [d], shared by all heads */
} attention_block;

/* What it keeps for its backward, besides its input x [T, H] and its output. */
typedef struct attention_saved {
    void *rstd;            /* [T] acc */
    void *a;               /* [T, H] RMSNorm(x) */
    void *q, *k, *v;       /* [T, Q d], [T, C d], [T, C d] as projected */
    void *rstd_q, *rstd_k; /* [T Q], [T C] acc */
    void *qr, *kr;         /* [T, Q d], [T, C d] normalised and rotated */
    void *o, *lse;         /* [T, Q d], [T, Q] acc */
} attention_saved;

typedef struct attention_scratch {
    void *do_;     /* [T, Q d] */
    void *dq;      /* [T, Q d] */
    void *dk, *dv; /* [T, C d] */
    void *da;      /* [T, H] */
    void *work;    /* [T, Q] acc */
} attention_scratch;

void attention_block_bind(attention_block *w, params *p, int layer);
void attention_saved_layout(attention_saved *k, space *sp, const shape *z);
void attention_scratch_layout(attention_scratch *t, space *sp, const shape *z);

/* y [T, H] = x + attention(x) */
WARN_UNUSED status attention_block_fwd(const run *r, const attention_block *w, const void *x,
                                       const attention_saved *k, void *y);
/* dy [T, H]: gradient of the output on entry, of x on return. */
WARN_UNUSED status attention_block_bwd(const run *r, const attention_block *w, const void *x,
                                       const attention_saved *k, const attention_scratch *t,
                                       void *dy);

#endif
