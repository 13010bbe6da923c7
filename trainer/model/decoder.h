/* decoder.h: the text model between embedding and head (spec 4.1 to 4.4, 4.6): embedding, visual
 * rows, decoder layers with deepstack additions, and the way back.
 *
 * T tokens of this rank, Tc of its tensor peers together, H hidden, L layers, E experts, M merged
 * rows. Where ranks share a row, each encodes some of its images (features are gathered from all,
 * their gradients summed back to the one that encoded them). Visual features come from and
 * gradients go to the vision tower. */
#ifndef TESSERA_MODEL_DECODER_H
#define TESSERA_MODEL_DECODER_H

#include "trainer/model/attention_block.h"
#include "trainer/model/mlp.h"
#include "trainer/model/moe.h"

typedef struct decoder_layer {
    bool is_moe;
    attention_block attention;
    moe moe; /* one of the two */
    mlp mlp;
} decoder_layer;

/* What a layer keeps for its backward, besides its input x [T, H]. */
typedef struct decoder_saved {
    attention_saved attention;
    void *x1; /* [T, H] behind the attention half */
    moe_saved moe;
    mlp_saved mlp;
} decoder_saved;

typedef struct decoder {
    /* parameters */
    const param *embed;   /* [V, H] */
    int64_t lowest;       /* first layer that backward must reach: below it nothing is trained */
    bool features_wanted; /* the vision tower or a merger is trained */
    decoder_layer *layer; /* [L] */
    /* activations */
    bool keep;            /* every layer has its own saved, else all share one */
    void **x;             /* [L + 1] of [T, H]: layer inputs, and the last output */
    decoder_saved *saved; /* [L], or 1 */
    void *cos, *sin;      /* [Tc, head_dim/2] acc */
    int32_t *count;       /* [L, E] slots per expert; NULL without MoE layers */
    moe_aux aux;
    void *dx;       /* [T, H] */
    void *add;      /* [T, H] scratch of deepstack additions */
    void *features; /* [ranks of the row, M, H] one feature of all, where several share images */
    attention_scratch attention_scratch;
    moe_scratch moe_scratch;
    mlp_scratch mlp_scratch;
    lora_scratch lora;
} decoder;

typedef struct decoder_modes {
    bool training;     /* inputs of all layers are kept, and there are gradients */
    bool keep;         /* all activations are kept (needs training) */
    bool aux;          /* the load-balancing loss */
    int64_t lora_rank; /* 0: no adapters */
    bool lora_experts;
} decoder_modes;

/* tokens: most of this rank, one of l. */
WARN_UNUSED status decoder_init(decoder *t, const model_dims *d, const layout *l, int64_t tokens);
void decoder_bind(decoder *t, params *p, const model_dims *d);
void decoder_done(decoder *t);
void decoder_layout(decoder *t, space *sp, const shape *z, decoder_modes mode);
void decoder_layout_scratch(decoder *t, space *sp, const shape *z, decoder_modes mode);

/* feature[0] visual rows [M, H], feature[1 + j] deepstack j; unused without patches. Result:
 * x[L]. Sets the rotary tables of r. */
WARN_UNUSED status decoder_fwd(decoder *t, run *r, void *const *feature);
/* t->dx: gradient of x[L] on entry. dfeature written like feature, where features_wanted. */
WARN_UNUSED status decoder_bwd(decoder *t, const run *r, void *const *dfeature);

#endif
