/* moe.h: the mixture-of-experts half of a decoder layer, forward and backward (equations.md, "Text
 * model" and "Loss"; the formulas are repeated in moe.c).
 *
 * T tokens, H hidden, E experts, K chosen per token, I expert width. A slot is one copy of a token
 * on its way to one of its experts: a (token, choice) pair. There are T K slots, sorted by expert.
 *
 * moe.c runs experts that this rank has all of. If ranks share experts, moe_shared.c takes over
 * between the router and the sum over a token's experts; it then handles the W tokens whose slots
 * this rank sends: its own T, or with expert-tensor parallelism those of all its tensor ranks. */
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

/* What backward reads besides the input x [T, H]. With expert-tensor parallelism slot_row,
 * row_token and o have room for the slots of W tokens. */
typedef struct moe_saved {
    void *rstd;         /* [T] acc */
    void *m;            /* [T, H] RMSNorm(x) */
    void *probs;        /* [T, E] acc */
    int32_t *expert;    /* [T, K] */
    void *weight;       /* [T, K] acc */
    int32_t *offset;    /* [E + 1] first slot of each expert */
    int32_t *slot_row;  /* [T, K] place of each slot in the order by expert */
    int32_t *row_token; /* [T K] token of each place */
    void *gu;           /* [T K, 2I] gate | up, overwritten by its gradient in backward; not used
                         * if ranks share experts */
    void *o;            /* [T K, H] outputs of experts, overwritten by their gradient in backward */
} moe_saved;

/* Scratch that all layers use in turn. */
typedef struct moe_scratch {
    void *logits;  /* [T, E] logits; in backward their gradient */
    void *xp;      /* [T K, H] input of each slot; in backward its gradient */
    void *a;       /* [T K, I] activations; in backward their gradient */
    void *dweight; /* [T, K] acc */
    void *dm;      /* [T, H] */
    /* For experts that ranks share. The last four exist if expert-tensor ranks cut experts, and
     * hold the tokens of all of them. */
    exchange exchange;
    void *wide;           /* [W, H] */
    int32_t *wide_expert; /* [W, K] */
    void *wide_weight;    /* [W, K] acc */
    void *wide_dweight;   /* [W, K] acc */
} moe_scratch;

/* The load-balancing loss, which pools statistics over all layers. */
typedef struct moe_aux {
    bool on;
    int64_t n_layers;  /* expert layers of the whole model */
    void *count_total; /* [E] acc: slots per expert */
    void *prob_sum;    /* [E] acc: sum of router probabilities; follows count_total in memory */
    void *of_batch;    /* [2] acc: aux_scale of the batch, of all ranks; follows prob_sum */
    void *sent;        /* a copy on its way to another pipeline stage while the next one arrives */
    void *value;       /* [1] acc: the loss */
} moe_aux;

/* Finds the parameters of a layer in the registry. */
void moe_bind(moe *block, params *registry, int layer);
/* Takes the arrays of these kinds (recompute.h) from sp; members of other kinds do not change. */
void moe_saved_layout(moe_saved *saved, space *sp, const shape *sizes, unsigned kinds);
/* Takes the scratch from sp. training: with what backward needs. */
void moe_scratch_layout(moe_scratch *scratch, space *sp, const shape *sizes, bool training);

/* y [T, H] = x + experts(RMSNorm(x)). count [E] int32 is written: slots per expert. aux: adds this
 * layer's statistics; NULL: no statistics. once: backward will not read what this call makes of
 * kind RECOMPUTE_FC1, so the call may leave it out. */
WARN_UNUSED status moe_fwd(const pass_context *ctx, const moe *block, const void *x,
                           const moe_saved *saved, const moe_scratch *scratch, int32_t *count,
                           const moe_aux *aux, bool once, void *y);
/* Computes the kinds of arrays in `what` again for moe_bwd. *out_fresh is to be passed to it. */
WARN_UNUSED status moe_recomputed(const pass_context *ctx, const moe *block, const void *x,
                                  const moe_saved *saved, const moe_scratch *scratch,
                                  int32_t *count, unsigned what, bool *out_fresh);
/* Called once after the forward of all layers, when aux is on: sums the statistics over the ranks
 * and computes the loss from them. */
WARN_UNUSED status moe_aux_sum(const pass_context *ctx, const moe_aux *aux);
/* Computes the loss from statistics that have already been summed. A pipeline stage before the last
 * calls it in backward, when they have come from the stage after it. */
WARN_UNUSED status moe_aux_value(const pass_context *ctx, const moe_aux *aux);
/* Takes the arrays of the statistics from sp: one block of moe_aux_elements, and its copy. acc: the
 * bytes of an element. */
void moe_aux_layout(moe_aux *aux, space *sp, int64_t experts, size_t acc);
/* Elements of count_total, prob_sum and of_batch together. */
static inline int64_t moe_aux_elements(int64_t experts)
{
    return 2 * experts + 2;
}
/* Sets the statistics to 0 before the first layer, and copies aux_scale from the batch. */
WARN_UNUSED status moe_aux_clear(const pass_context *ctx, const moe_aux *aux);
/* dy [T, H] holds the gradient of the output on entry and that of x on return. count: as written by
 * the forward. fresh: scratch already holds this layer's xp and a. */
WARN_UNUSED status moe_bwd(const pass_context *ctx, const moe *block, const void *x,
                           const moe_saved *saved, const moe_scratch *scratch, const int32_t *count,
                           const moe_aux *aux, bool fresh, void *dy);

/* True if experts are divided among several ranks. */
static inline bool moe_is_shared(const layout *degrees)
{
    return degrees->expert * degrees->expert_tensor > 1;
}
/* The same for experts that ranks share (moe_shared.c); called by moe.c. Forward runs after the
 * router and writes y as moe_fwd does, or with y NULL only what backward needs. Backward runs
 * before the router's and computes dweight and dm in scratch from dy. */
void moe_shared_layout(moe_scratch *scratch, space *sp, const shape *sizes);
WARN_UNUSED status moe_shared_fwd(const pass_context *ctx, const moe *block, const void *x,
                                  const moe_saved *saved, const moe_scratch *scratch, void *y);
WARN_UNUSED status moe_shared_bwd(const pass_context *ctx, const moe *block, const moe_saved *saved,
                                  const moe_scratch *scratch, const void *dy);

#endif
