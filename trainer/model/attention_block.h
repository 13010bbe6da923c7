/* attention_block.h: the attention half of a decoder layer, forward and backward (equations.md,
 * "Text model"; the formulas are repeated in attention_block.c).
 *
 * T tokens, H hidden, Q query heads, C key-value heads, d head_dim.
 *
 * With several ranks, T counts the tokens of this rank, Tc those of all its tensor ranks, A those
 * of the whole row, and Q and C count this rank's heads. The norm's output is gathered over tensor
 * ranks. Keys and values are gathered over context ranks, and gathered again in backward instead of
 * being kept. The output projection is summed over tensor ranks, and each takes its own tokens. */
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

/* What backward reads besides the input x [T, H]. */
typedef struct attention_saved {
    void *rstd;            /* [T] acc */
    void *a;               /* [T, H] RMSNorm(x) */
    void *q, *k, *v;       /* [Tc, Q d], [Tc, C d], [Tc, C d] before norm and rotation */
    void *rstd_q, *rstd_k; /* [Tc Q], [Tc C] acc */
    void *qr, *kr;         /* [Tc, Q d], [Tc, C d] after norm and rotation */
    void *o, *lse;         /* [Tc, Q d], [Tc, Q] acc */
} attention_saved;

/* Scratch that all layers use in turn. */
typedef struct attention_scratch {
    void *do_;     /* [Tc, Q d] */
    void *dq;      /* [Tc, Q d] */
    void *dk, *dv; /* [Tc, C d] */
    void *da;      /* [Tc, H] */
    void *work;    /* [Tc, Q] acc */
    /* with several tensor ranks */
    void *wide; /* [Tc, H] */
    /* with several context ranks */
    void *keys, *values;   /* [A, C d] in the order of the packed row */
    void *dkeys, *dvalues; /* [A, C d] likewise */
    void *ranks;           /* [A, C d] in the order of ranks */
} attention_scratch;

/* Finds the parameters of a layer in the registry. */
void attention_block_bind(attention_block *block, params *registry, int layer);
/* Takes the arrays of these kinds (recompute.h) from sp; members of other kinds do not change. */
void attention_saved_layout(attention_saved *saved, space *sp, const shape *sizes, unsigned kinds);
/* Takes the scratch from sp. training: with what backward needs. */
void attention_scratch_layout(attention_scratch *scratch, space *sp, const shape *sizes,
                              bool training);

/* y [T, H] = x + attention(x). what: RECOMPUTE_ALL in forward; in backward the kinds of arrays to
 * compute again, the others still being there. y is of kind RECOMPUTE_PROJ. */
WARN_UNUSED status attention_block_fwd(const pass_context *ctx, const attention_block *block,
                                       const void *x, const attention_saved *saved,
                                       const attention_scratch *scratch, unsigned what, void *y);
/* dy [T, H] holds the gradient of the output on entry and that of x on return. */
WARN_UNUSED status attention_block_bwd(const pass_context *ctx, const attention_block *block,
                                       const void *x, const attention_saved *saved,
                                       const attention_scratch *scratch, void *dy);

#endif
