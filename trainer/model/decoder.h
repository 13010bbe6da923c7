/* decoder.h: the text model from the embedding to the input of the head, forward and backward
 * (equations.md, "Text model"): embedding, visual rows, decoder layers with deepstack additions.
 *
 * T tokens of this rank, Tc tokens of all its tensor ranks together, H hidden, L layers, E experts,
 * V vocabulary, M merged rows. Visual features come from the vision tower (vision.h) and their
 * gradients return to it. If ranks share a row, each encodes some of its pictures: features are
 * gathered from all of them, and gradients are summed back to the rank that encoded the picture. */
#ifndef TESSERA_TRAINER_MODEL_DECODER_H
#define TESSERA_TRAINER_MODEL_DECODER_H

#include "trainer/model/attention_block.h"
#include "trainer/model/mlp.h"
#include "trainer/model/moe.h"

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
 * tokens of its own. Heap memory only; the three layout calls below place its device arrays. */
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

#endif
