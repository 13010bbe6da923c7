/* moe.h: the mixture-of-experts half of a decoder layer (spec 4.4, 4.6), forward and backward.
 *
 * T tokens, H hidden, E experts, K chosen, I expert width; slots: (token, choice) pairs, T K of
 * them, sorted by expert. Maths in moe.c. Where ranks share experts (moe_shared.c), slots are of
 * the W tokens that this rank's experts are offered by it. */
#ifndef TESSERA_TRAINER_MODEL_MOE_H
#define TESSERA_TRAINER_MODEL_MOE_H

#include "trainer/device/space.h"
#include "trainer/model/exchange.h"
#include "trainer/model/layers.h"
#include "trainer/model/recompute.h"

typedef struct moe {
    int64_t layer;
    const param *norm;           /* post_attention_layernorm [H] */
    linear gate;                 /* router [E, H] */
    const param *gate_up, *down; /* [E, H, 2I], [E, I, H] */
    lora gate_up_adapter, down_adapter;
} moe;

/* Kept for backward, besides the input x [T, H]. */
typedef struct moe_saved {
    void *rstd;         /* [T] acc */
    void *m;            /* [T, H] RMSNorm(x) */
    void *probs;        /* [T, E] acc */
    int32_t *expert;    /* [T, K] */
    void *weight;       /* [T, K] acc */
    int32_t *offset;    /* [E + 1] first slot of each expert */
    int32_t *slot_row;  /* [T, K] */
    int32_t *row_token; /* [T K] */
    void *gu;           /* [T K, 2I] gate | up; replaced by its gradient in backward; not of shared
                         * experts */
    void *o;            /* [T K, H] expert outputs; replaced by their gradient */
} moe_saved;

/* Shared by all layers. */
typedef struct moe_scratch {
    void *logits;  /* [T, E]; dlogits in backward */
    void *xp;      /* [T K, H] inputs by slot; their gradient in backward */
    void *a;       /* [T K, I] activations; their gradient in backward */
    void *dweight; /* [T, K] acc */
    void *dm;      /* [T, H] */
    /* of shared experts; the last four where expert-tensor ranks cut them: of all their tokens */
    exchange exchange;
    void *wide;           /* [W, H] */
    int32_t *wide_expert; /* [W, K] */
    void *wide_weight;    /* [W, K] acc */
    void *wide_dweight;   /* [W, K] acc */
} moe_scratch;

/* The load-balancing loss over all layers; NULL pointers where it is off. */
typedef struct moe_aux {
    bool on;
    int64_t n_layers;  /* MoE layers */
    void *count_total; /* [E] acc */
    void *prob_sum;    /* [E] acc, behind it */
    void *of_batch;    /* [2] acc, behind that: its aux_scale, of all ranks */
    void *sent;        /* a copy, on its way to the stage before while the next come from there */
    void *value;       /* [1] acc */
} moe_aux;

void moe_bind(moe *w, params *p, int layer);
/* Arrays of these kinds (recompute.h) alone; the others stay as they are. */
void moe_saved_layout(moe_saved *k, space *sp, const shape *z, unsigned kinds);
void moe_scratch_layout(moe_scratch *t, space *sp, const shape *z, bool training);

/* y [T, H] = x + experts(RMSNorm(x)). count [E] int32 written. aux NULL: no statistics. once: what
 * is of kind RECOMPUTE_FC1 is not kept for a backward, so it may be left out. */
WARN_UNUSED status moe_fwd(const pass_context *r, const moe *w, const void *x, const moe_saved *k,
                           const moe_scratch *t, int32_t *count, const moe_aux *aux, bool once,
                           void *y);
/* Computes these kinds of arrays again, for moe_bwd; out_fresh: its fresh. */
WARN_UNUSED status moe_recomputed(const pass_context *r, const moe *w, const void *x,
                                  const moe_saved *k, const moe_scratch *t, int32_t *count,
                                  unsigned what, bool *out_fresh);
/* Once behind all layers' forward, when on: the statistics of all ranks, and the value. */
WARN_UNUSED status moe_aux_sum(const pass_context *r, const moe_aux *aux);
/* The value, of statistics that are there: a pipeline stage's before the last. */
WARN_UNUSED status moe_aux_value(const pass_context *r, const moe_aux *aux);
/* The statistics' arrays: one block of moe_aux_elements, acc. */
void moe_aux_layout(moe_aux *aux, space *sp, int64_t experts, size_t acc);
static inline int64_t moe_aux_elements(int64_t experts)
{
    return 2 * experts + 2;
}
/* Before the first layer. */
WARN_UNUSED status moe_aux_clear(const pass_context *r, const moe_aux *aux);
/* dy [T, H]: gradient of the output on entry, of x on return. count: of the forward. fresh: t has
 * that layer's slots and their activations. */
WARN_UNUSED status moe_bwd(const pass_context *r, const moe *w, const void *x, const moe_saved *k,
                           const moe_scratch *t, const int32_t *count, const moe_aux *aux,
                           bool fresh, void *dy);

/* Are experts on other ranks too? */
static inline bool moe_is_shared(const layout *l)
{
    return l->expert * l->expert_tensor > 1;
}
/* Of shared experts, in moe_shared.c. Forward, behind the routing: y as moe_fwd has it; NULL: only
 * what backward needs. Backward, before the router's: s->dweight and s->dm from dy. */
void moe_shared_layout(moe_scratch *t, space *sp, const shape *z);
WARN_UNUSED status moe_shared_fwd(const pass_context *r, const moe *w, const void *x,
                                  const moe_saved *k, const moe_scratch *s, void *y);
WARN_UNUSED status moe_shared_bwd(const pass_context *r, const moe *w, const moe_saved *k,
                                  const moe_scratch *s, const void *dy);

#endif
