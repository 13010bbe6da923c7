/* attention_block.h: the attention half of a decoder layer (spec 4.2), forward and backward.
 *
 * T tokens, H hidden, Q query heads, C key-value heads, d head_dim. Maths in attention_block.c.
 *
 * Of several ranks: T tokens of this rank, Tc of its tensor peers together, A of the whole row; Q
 * and C are this rank's heads. The norm's output is gathered over tensor ranks, keys and values
 * over context ranks (and again for backward, rather than kept); the projection back is summed over
 * tensor ranks and scattered. */
#ifndef TESSERA_TRAINER_MODEL_ATTENTION_BLOCK_H
#define TESSERA_TRAINER_MODEL_ATTENTION_BLOCK_H

#include "trainer/device/space.h"
#include "trainer/model/layers.h"
#include "trainer/model/recompute.h"

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
    void *q, *k, *v;       /* [Tc, Q d], [Tc, C d], [Tc, C d] as projected */
    void *rstd_q, *rstd_k; /* [Tc Q], [Tc C] acc */
    void *qr, *kr;         /* [Tc, Q d], [Tc, C d] normalised and rotated */
    void *o, *lse;         /* [Tc, Q d], [Tc, Q] acc */
} attention_saved;

typedef struct attention_scratch {
    void *do_;     /* [Tc, Q d] */
    void *dq;      /* [Tc, Q d] */
    void *dk, *dv; /* [Tc, C d] */
    void *da;      /* [Tc, H] */
    void *work;    /* [Tc, Q] acc */
    /* of several tensor ranks */
    void *wide; /* [Tc, H] */
    /* of several context ranks */
    void *keys, *values;   /* [A, C d] packed */
    void *dkeys, *dvalues; /* [A, C d] packed */
    void *ranks;           /* [A, C d] rank by rank */
} attention_scratch;

void attention_block_bind(attention_block *w, params *p, int layer);
/* Arrays of these kinds (recompute.h) alone; the others stay as they are. */
void attention_saved_layout(attention_saved *k, space *sp, const shape *z, unsigned kinds);
void attention_scratch_layout(attention_scratch *t, space *sp, const shape *z, bool training);

/* y [T, H] = x + attention(x), of kind RECOMPUTE_PROJ. what: RECOMPUTE_ALL, or the kinds of arrays
 * that are computed again, the others being as they were left. */
WARN_UNUSED status attention_block_fwd(const pass_context *r, const attention_block *w,
                                       const void *x, const attention_saved *k,
                                       const attention_scratch *t, unsigned what, void *y);
/* dy [T, H]: gradient of the output on entry, of x on return. */
WARN_UNUSED status attention_block_bwd(const pass_context *r, const attention_block *w,
                                       const void *x, const attention_saved *k,
                                       const attention_scratch *t, void *dy);

#endif
