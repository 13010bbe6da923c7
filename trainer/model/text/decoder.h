/* SPDX-License-Identifier: Apache-2.0 */
/* decoder.h: the text model, forward and backward (equations.md, "Text model" and "Loss"): the two
 * halves of a decoder layer (attention; experts or a dense MLP), the layers between embedding and
 * final norm, the head with its loss, and what pipeline stages exchange.
 *
 * T tokens of this rank, H hidden, L layers, V vocabulary, M merged rows. With several ranks, Tc
 * counts the tokens of all tensor ranks with the same context rank, and A those of the whole row
 * (layers.h). */
#ifndef TESSERA_TRAINER_MODEL_TEXT_DECODER_H
#define TESSERA_TRAINER_MODEL_TEXT_DECODER_H

#include "trainer/device/backend.h"
#include "trainer/device/space.h"
#include "trainer/model/exchange/exchange.h"
#include "trainer/model/layers/layers.h"
#include "trainer/model/layers/recompute.h"
#include "trainer/parallel/pipeline_stages.h"

/* ---- attention (the formulas are repeated in attention_block.c) ----
 *
 * Q query heads and C key-value heads of this rank, d head_dim. The norm's output is gathered over
 * tensor ranks. Keys and values are gathered over context ranks, and gathered again in backward
 * instead of being kept. The output projection is summed over tensor ranks, and each takes its own
 * tokens. */

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

/* ---- the dense SwiGLU MLP ----
 *
 * Dense models have it in all layers, others in the layers that mlp_only_layers or
 * decoder_sparse_step leave dense. F: this rank's part of the intermediate width.
 *
 *   m = RMSNorm(x)    u = [m Wgt | m Wut] [T, 2F]    a = silu(gate) * up [T, F]    y = x + a Wdt */

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

/* ---- the mixture of experts (the formulas are repeated in moe.c) ----
 *
 * E experts, K chosen per token, I expert width. A slot is one copy of a token on its way to one of
 * its experts: a (token, choice) pair. There are T K slots, sorted by expert.
 *
 * moe.c runs experts that this rank has all of. If ranks share experts, moe_shared.c takes over
 * between the router and the sum over a token's experts; it then handles the W tokens whose slots
 * this rank sends: its own T, or with expert-tensor parallelism those of all its tensor ranks. */

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

/* The same for experts that ranks share (moe_shared.c); called by moe.c. Forward runs after the
 * router and writes y as moe_fwd does, or with y NULL only what backward needs. Backward runs
 * before the router's and computes dweight and dm in scratch from dy. */
void moe_shared_layout(moe_scratch *scratch, space *sp, const shape *sizes);
WARN_UNUSED status moe_shared_fwd(const pass_context *ctx, const moe *block, const void *x,
                                  const moe_saved *saved, const moe_scratch *scratch, void *y);
WARN_UNUSED status moe_shared_bwd(const pass_context *ctx, const moe *block, const moe_saved *saved,
                                  const moe_scratch *scratch, const void *dy);

/* ---- the layers ----
 *
 * Visual features come from the vision tower (vision.h) and their gradients return to it. If ranks
 * share a row, each encodes some of its pictures: features are gathered from all of them, and
 * gradients are summed back to the rank that encoded the picture. */

typedef struct decoder_layer {
    bool is_moe;
    attention_block attention;
    moe moe; /* where is_moe */
    mlp mlp; /* elsewhere */
} decoder_layer;

/* What a layer's backward reads besides its input x [T, H]. It is kept or computed again. */
typedef struct decoder_saved {
    attention_saved attention;
    void *x1; /* [T, H] output of the attention half */
    moe_saved moe;
    mlp_saved mlp;
} decoder_saved;

typedef struct decoder {
    stage_part part; /* layers of this pipeline stage; arrays by layer are filled for these only */
    /* parameters */
    const param *embed;   /* [V, H] */
    int64_t lowest;       /* the first layer that backward must reach; nothing below is trained */
    bool features_wanted; /* the vision tower or a merger is trained */
    decoder_layer *layer; /* [L] */
    /* activations */
    recompute recomputed;
    void **x;             /* [L + 1] of [T, H]: inputs of the layers, then the last output */
    decoder_saved *saved; /* [L]; arrays that are computed again lie in memory shared by layers */
    void *cos, *sin;      /* [Tc, head_dim/2] acc */
    int32_t *count;       /* [L, E] token copies per expert; NULL without expert layers */
    moe_aux aux;
    void *dx;       /* [T, H] gradient on its way down */
    void *pad_row;  /* [H] acc copy of the pad token's gradient row; NULL without a pad token */
    void *add;      /* [T, H] scratch for deepstack additions */
    void *features; /* [ranks of the row, M, H] one feature of every rank; NULL for one rank */
    attention_scratch attention_scratch;
    moe_scratch moe_scratch;
    mlp_scratch mlp_scratch;
    lora_scratch lora;
} decoder;

typedef struct decoder_modes {
    bool training; /* inputs of all layers are kept, and gradients are computed */
    recompute recomputed;
    bool aux; /* the load-balancing loss is on */
    lora_modes lora;
} decoder_modes;

/* Prepares a decoder for a rank of layout `degrees` that has the layers `part` and at most `tokens`
 * its own tokens. Heap memory only; the three layout calls below place its device arrays. */
WARN_UNUSED status decoder_init(decoder *stack, const model_dims *dims, const layout *degrees,
                                const stage_part *part, int64_t tokens);
void decoder_bind(decoder *stack, params *registry, const model_dims *dims);
void decoder_done(decoder *stack);
/* Takes from sp what is kept from forward to backward. */
void decoder_layout(decoder *stack, space *sp, const shape *sizes, decoder_modes mode);
/* Bytes that the arrays of these kinds (recompute.h) of one layer take. */
int64_t decoder_kinds_bytes(const decoder *stack, const shape *sizes, int64_t layer,
                            unsigned kinds);
/* Takes from sp what only lives inside a pass and may share memory with other parts' scratch. */
void decoder_layout_scratch(decoder *stack, space *sp, const shape *sizes, decoder_modes mode);

/* Runs the stage's layers. feature[0] [M, H] are the visual rows, feature[1 + j] deepstack feature
 * j; they are not read without patches. On a stage that does not open the model, x[first] and the
 * auxiliary loss's statistics of the layers before have already arrived. Result: x[end]. Sets the
 * rotary tables of ctx. */
WARN_UNUSED status decoder_fwd(decoder *stack, pass_context *ctx, void *const *feature);
/* stack->dx holds the gradient of x[end] on entry and that of x[first] on return, if something
 * before x[first] is trained. dfeature is written in the form of feature, if features_wanted. */
WARN_UNUSED status decoder_bwd(decoder *stack, pass_context *ctx, void *const *dfeature);
/* True if something before x[layer] is trained, so that its gradient is wanted. */
static inline bool decoder_reaches_below(const decoder *stack, int64_t layer)
{
    return stack->lowest < layer;
}

/* ---- final norm, output head and token loss ----
 *
 * Only the rows of targets are computed, in chunks, so that logits exist for at most R rows at a
 * time. N targets.
 *
 *   z = RMSNorm(h[target_token])  [N, H]      logits = z Wheadt  [R, V] at a time
 *   loss += sum of weight * (logsumexp(logits) - logits[label])
 *
 * The head does not know the model around it; its weights come as pointers. All calls queue work
 * and do not wait. */

typedef struct head {
    int64_t hidden, vocab;
    double eps;
    const void *norm, *weight; /* [H], [V, H] act; borrowed */
    void *dnorm, *dweight;     /* their gradients, acc, added to; dweight is NULL if it is frozen */
    /* activations */
    int64_t rows;          /* R */
    void *picked, *z, *dz; /* [max(N, R), H] act */
    void *rstd;            /* [max(N, R)] acc */
    void *logits;          /* [R, V] act */
} head;

/* R if the options name none. The gradient of the weights reads and writes all of its sums for each
 * R targets, and dz has R / 128 x H / 256 tiles of a product: with 2,048 and H 2,048, 128 of them
 * for the 132 multiprocessors of an H200, and 622 MB of logits. With 512 a step of 49,152 targets
 * took 48 ms longer, a quarter of what it takes besides its layers (trainer/ops/layer_time.md). */
enum { LOGIT_ROWS_DEFAULT = 2048 };

/* Takes the head's arrays from sp for at most `targets` targets. act, acc: bytes of an element. */
void head_layout(head *loss_head, space *sp, int64_t targets, size_t act, size_t acc,
                 bool training);

/* The targets of a batch; arrays are in device memory. */
typedef struct head_targets {
    int64_t count;          /* rows that ops run on, padding included */
    const int32_t *token;   /* [count] token whose state predicts the target; -1: padding */
    const int32_t *label;   /* [count] token id to be predicted; -1: padding */
    const void *weight;     /* [count] acc */
    double *loss, *weights; /* sums, added to */
    void *nll;              /* [count] acc, written: negative log-likelihoods; NULL: not wanted */
    int32_t *best;          /* [count] written: likeliest token; NULL: not wanted */
} head_targets;

/* Adds the loss of h [T, H] act, the output of the last layer, to the sums. With `backward` it also
 * writes dh [T, H] and adds the gradients of norm and weight; else dh is ignored. tokens: T. */
WARN_UNUSED status head_loss(const head *loss_head, stream *queue, int64_t tokens, const void *h,
                             const head_targets *targets, bool backward, void *dh);

/* out [count, V] act = logits of the rows of h [T, H] that token [count], a list on the device,
 * names. */
WARN_UNUSED status head_logits(const head *loss_head, stream *queue, const void *h,
                               const int32_t *token, int64_t count, void *out);

/* ---- between two neighbouring pipeline stages (parallel/layouts.md) ----
 *
 * Activations [T, H] go forward, their gradients back. With the auxiliary loss its statistics go
 * both ways too: forward those of the layers so far, back those of all layers. */

/* A pass of this stage, as far as its neighbours are concerned. */
typedef struct pipeline_exchange {
    pass_kind kind;
    const decoder *stack; /* holds the micro-batch's activations */
    int64_t tokens;       /* T */
} pipeline_exchange;

/* Sends what the pass `done` made and receives what the pass `next` needs, both at once, because
 * neighbours may be sending to each other; so the arrays of the two must differ. Either may have
 * kind PASS_NONE. pipeline: the group of this rank's stages, in their order. */
WARN_UNUSED status pipeline_exchange_cross(const comm *pipeline, stream *queue,
                                           const model_dims *dims, const pipeline_exchange *done,
                                           const pipeline_exchange *next);

#endif
