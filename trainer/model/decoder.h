/* decoder.h: the text model between embedding and head (spec 4.1 to 4.4, 4.6): embedding, visual
 * rows, decoder layers with deepstack additions, and the way back.
 *
 * T tokens of this rank, Tc of its tensor peers together, H hidden, L layers, E experts, M merged
 * rows. Where ranks share a row, each encodes some of its images (features are gathered from all,
 * their gradients summed back to the one that encoded them). Visual features come from and
 * gradients go to the vision tower. */
#ifndef TESSERA_TRAINER_MODEL_DECODER_H
#define TESSERA_TRAINER_MODEL_DECODER_H

#include "trainer/model/attention_block.h"
#include "trainer/model/mlp.h"
#include "trainer/model/moe.h"

typedef struct decoder_layer {
    bool is_moe;
    attention_block attention;
    moe moe; /* one of the two */
    mlp mlp;
} decoder_layer;

/* What a layer's backward reads, besides its input x [T, H]: kept, or computed again. */
typedef struct decoder_saved {
    attention_saved attention;
    void *x1; /* [T, H] behind the attention half */
    moe_saved moe;
    mlp_saved mlp;
} decoder_saved;

typedef struct decoder {
    stage_part part; /* of a pipeline stage: arrays by layer have entries for its own alone */
    /* parameters */
    const param *embed;   /* [V, H] */
    int64_t lowest;       /* first layer that backward must reach: below it nothing is trained */
    bool features_wanted; /* the vision tower or a merger is trained */
    decoder_layer *layer; /* [L] */
    /* activations */
    recompute recomputed;
    void **x;             /* [L + 1] of [T, H]: layer inputs, and the last output */
    decoder_saved *saved; /* [L]; what is computed again is in memory that all layers share */
    void *cos, *sin;      /* [Tc, head_dim/2] acc */
    int32_t *count;       /* [L, E] slots per expert; NULL without MoE layers */
    moe_aux aux;
    void *dx;       /* [T, H] */
    void *pad_row;  /* [H] acc; NULL where no token's embedding is without a gradient */
    void *add;      /* [T, H] scratch of deepstack additions */
    void *features; /* [ranks of the row, M, H] one feature of all, where several share images */
    attention_scratch attention_scratch;
    moe_scratch moe_scratch;
    mlp_scratch mlp_scratch;
    lora_scratch lora;
} decoder;

typedef struct decoder_modes {
    bool training; /* inputs of all layers are kept, and there are gradients */
    recompute recomputed;
    bool aux;          /* the load-balancing loss */
    int64_t lora_rank; /* 0: no adapters */
    bool lora_experts;
} decoder_modes;

/* tokens: most of this rank, one of l; part: its layers. */
WARN_UNUSED status decoder_init(decoder *t, const model_dims *d, const layout *l,
                                const stage_part *part, int64_t tokens);
void decoder_bind(decoder *t, params *p, const model_dims *d);
void decoder_done(decoder *t);
void decoder_layout(decoder *t, space *sp, const shape *z, decoder_modes mode);
/* Bytes of arrays of these kinds of a layer. */
int64_t decoder_kinds_bytes(const decoder *t, const shape *z, int64_t layer, unsigned kinds);
void decoder_layout_scratch(decoder *t, space *sp, const shape *z, decoder_modes mode);

/* feature[0] visual rows [M, H], feature[1 + j] deepstack j; unused without patches, and where the
 * part does not open the model: then x[first] is there, and the auxiliary loss's statistics of the
 * layers before. Result: x[end]. Sets the rotary tables of r. */
WARN_UNUSED status decoder_fwd(decoder *t, pass_context *r, void *const *feature);
/* t->dx: gradient of x[end] on entry; of x[first] behind it, where that is wanted. dfeature written
 * like feature, where features_wanted. */
WARN_UNUSED status decoder_bwd(decoder *t, pass_context *r, void *const *dfeature);
/* Is the gradient of x[layer] wanted: is something before it trained? */
static inline bool decoder_reaches_below(const decoder *t, int64_t layer)
{
    return t->lowest < layer;
}

#endif
