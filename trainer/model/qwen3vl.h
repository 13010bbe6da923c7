/* qwen3vl.h: the whole model: forward, loss, backward of one micro-batch (spec sections 3, 4, 6).
 *
 * Losses and gradients are sums over targets (weight * nll); the optimiser divides by the weight of
 * the step, so packed, unpacked, one rank or eight agree. The auxiliary loss enters as
 * coefficient * weight of the micro-batch * aux;
 * that product comes with the batch (stager_mark). */
#ifndef TESSERA_MODEL_QWEN3VL_H
#define TESSERA_MODEL_QWEN3VL_H

#include "trainer/batch/stage.h"
#include "trainer/model/dims.h"
#include "trainer/model/params.h"

typedef struct model model;
typedef struct kv_cache kv_cache; /* kv_cache.h */

typedef struct model_options {
    batch_caps cap;       /* of whole rows, however many ranks share them */
    const mesh *mesh;     /* borrowed; NULL: the one that parameters are shared over, or one rank */
    bool training;        /* keep activations, have gradients */
    bool checkpoint_full; /* keep only block inputs, compute again in backward */
    bool tower_frozen;    /* the vision tower: of it only what mergers read is kept */
    bool vision_frozen;   /* the mergers too: nothing is kept */
    double router_aux_coef; /* 0 = off */
    int64_t lora_rank;      /* of adapters; 0: none */
    bool lora_experts;      /* some belong to experts */
    int64_t logit_rows;     /* rows of logits held at once; 0 = default */
} model_options;

/* tower_frozen, vision_frozen and adapters as the registry has it. */
void model_options_freeze(model_options *o, const params *p);

WARN_UNUSED status model_new(stream *s, const model_dims *d, params *p, const model_options *o,
                             model **out);
void model_free(model **m, stream *s);
/* Device bytes of a model's activations. Scratch of vision, text and head shares bytes. */
typedef struct model_regions {
    int64_t vision_kept, text_kept; /* from a part's forward to its backward */
    int64_t vision_scratch, text_scratch, head_scratch;
    int64_t total;
} model_regions;
WARN_UNUSED status model_regions_of(const model_dims *d, const model_options *o,
                                    const backend_vtable *backend, model_regions *out);
/* Their total, without allocating. */
WARN_UNUSED status model_bytes(const model_dims *d, const model_options *o,
                               const backend_vtable *backend, int64_t *out_bytes);

/* What one micro-batch adds to; device memory, cleared by the caller at the start of a step. */
typedef struct loss_sums {
    double *loss;   /* sum of weight * nll (without aux) */
    double *weight; /* sum of weights */
    void *aux;      /* [1] acc: aux of the last micro-batch */
} loss_sums;

WARN_UNUSED status model_forward_backward(model *m, stream *s, const device_batch *b,
                                          const loss_sums *sums);
/* Forward only; nll [cap.targets] acc and best [cap.targets] int32 written where not NULL. */
WARN_UNUSED status model_forward(model *m, stream *s, const device_batch *b, const loss_sums *sums,
                                 void *nll, int32_t *best);
/* Up to the last hidden states, with keys and values kept in the cache; losses stay as they are. */
WARN_UNUSED status model_forward_cached(model *m, stream *s, const device_batch *b,
                                        const kv_cache *cache);
/* Logits [n, V] act of these tokens after a model_forward (generation, probe): token index list on
 * the device. */
WARN_UNUSED status model_logits(model *m, stream *s, const int32_t *tokens, int64_t n,
                                void *out_logits);
/* bias [L, E] act on the device, added to the routers' logits from the next call on; borrowed. For
 * benches of uneven loads. */
void model_bias_router(model *m, const void *bias);
/* Tokens per expert and layer of the last forward: [L, E] int32 on the device; NULL if no MoE. */
const int32_t *model_expert_count(const model *m);

#endif
