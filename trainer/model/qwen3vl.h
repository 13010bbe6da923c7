/* qwen3vl.h: the whole model: forward, loss, backward of one micro-batch (spec sections 3, 4, 6).
 *
 * Losses and gradients are sums over targets (weight * nll); the optimiser divides by the weight of
 * the step, so packed, unpacked, one rank or eight agree. The auxiliary loss enters as
 * coefficient * weight of the micro-batch * aux;
 * that product comes with the batch (stager_mark). */
#ifndef TESSERA_TRAINER_MODEL_QWEN3VL_H
#define TESSERA_TRAINER_MODEL_QWEN3VL_H

#include "trainer/model/device_batch.h"
#include "trainer/model/dims.h"
#include "trainer/model/params.h"
#include "trainer/model/recompute.h"
#include "trainer/parallel/pipeline_stages.h"

typedef struct model model;
typedef struct kv_cache kv_cache;               /* kv_cache.h */
typedef struct exchange_window exchange_window; /* exchange.h */

/* How slots go to experts on other ranks (exchange.h). */
typedef enum exchange_way {
    EXCHANGE_BY_HOST,
    EXCHANGE_IF_REACHED, /* on the device where ranks reach each other's memory; else by the host */
    EXCHANGE_BY_DEVICE   /* UNAVAILABLE where they do not */
} exchange_way;

typedef struct model_options {
    batch_caps cap;   /* of whole rows, however many ranks share them */
    const mesh *mesh; /* borrowed; NULL: the one that parameters are shared over, or one rank */
    bool training;    /* keep activations, have gradients */
    recomputes recomputed;  /* in backward */
    bool tower_frozen;      /* the vision tower: of it only what mergers read is kept */
    bool vision_frozen;     /* the mergers too: nothing is kept */
    double router_aux_coef; /* 0 = off */
    int64_t lora_rank;      /* of adapters; 0: none */
    bool lora_experts;      /* some belong to experts */
    int64_t logit_rows;     /* rows of logits held at once; 0 = default */
    exchange_way exchange;
} model_options;

/* tower_frozen, vision_frozen and adapters as the registry has it. */
void model_options_freeze(model_options *o, const params *p);

WARN_UNUSED status model_new(stream *s, const model_dims *d, params *p, const model_options *o,
                             model **out);
void model_free(model **m, stream *s);
/* Rows of logits held at once. */
int64_t model_logit_rows(const model_options *o);
/* Device bytes of a model's activations. Scratch of vision, text and head shares bytes. */
typedef struct model_regions {
    int64_t vision_kept, text_kept; /* from a part's forward to its backward */
    int64_t vision_scratch, text_scratch, head_scratch;
    int64_t window; /* what ranks that share experts leave with each other; beside the others */
    int64_t total;
} model_regions;
WARN_UNUSED status model_regions_of(const model_dims *d, const model_options *o,
                                    const backend_vtable *backend, model_regions *out);
/* Bytes that arrays of these kinds (recompute.h) take of one decoder layer (the last) and of one
 * vision block, 0 without a tower. */
WARN_UNUSED status model_kinds_bytes(const model_dims *d, const model_options *o,
                                     const backend_vtable *backend, unsigned kinds,
                                     int64_t *out_layer, int64_t *out_block);
/* Total bytes of activations, without allocating. */
WARN_UNUSED status model_bytes(const model_dims *d, const model_options *o,
                               const backend_vtable *backend, int64_t *out_bytes);

/* What one micro-batch adds to; device memory, cleared by the caller at the start of a step. */
typedef struct loss_sums {
    double *loss;   /* sum of weight * nll (without aux) */
    double *weight; /* sum of weights */
    void *aux;      /* [1] acc: aux of the last micro-batch */
} loss_sums;

/* A micro-batch's way through this rank's part of the model. `flight` is where its activations are
 * kept from its forward to its backward: below model_flights, one micro-batch at a time. */
typedef struct model_pass {
    pass_kind kind;
    int flight;
    const device_batch *b;
} model_pass;

int model_flights(const model *m);
/* Of a model with these options: what of a pipeline's 1F1B is under way at a time. */
int model_flights_of(const model_options *o);
/* Before every pass of a pipeline stage, and with PASS_NONE behind the last one: what the pass
 * before made goes to the stages beside it, and what the next one needs arrives. Nothing of one
 * stage. */
WARN_UNUSED status model_hand_over(model *m, stream *s, const model_pass *next);
WARN_UNUSED status model_run(model *m, stream *s, const model_pass *p, const loss_sums *sums);
/* The same of one stage, forward and backward. */
WARN_UNUSED status model_forward_backward(model *m, stream *s, const device_batch *b,
                                          const loss_sums *sums);
/* Forward only; nll [cap.targets] acc and best [cap.targets] int32 written where not NULL. Of a
 * pipeline every stage calls, and the last one has the losses. */
WARN_UNUSED status model_forward(model *m, stream *s, const device_batch *b, const loss_sums *sums,
                                 void *nll, int32_t *best);
/* Up to the last hidden states, with keys and values kept in the cache; losses stay as they are.
 * Of several ranks all call it. */
WARN_UNUSED status model_forward_cached(model *m, stream *s, const device_batch *b,
                                        const kv_cache *cache);
/* Whether the last hidden states are here: on the last stage. */
bool model_chooses(const model *m);
/* Logits [n, V] act of these tokens of this rank after a model_forward (generation, probe): token
 * index list on the device. Where model_chooses; of several ranks all of these call it, n may be
 * 0. */
WARN_UNUSED status model_logits(model *m, stream *s, const int32_t *tokens, int64_t n,
                                void *out_logits);
/* bias [L, E] act on the device, added to the routers' logits from the next call on; borrowed. For
 * benches of uneven loads. */
void model_bias_router(model *m, const void *bias);
/* NULL: no experts are shared, or the host reads their counts. */
const exchange_window *model_exchange(const model *m);
/* Tokens per expert and layer of the last forward: [L, E] int32 on the device; NULL if no MoE. */
const int32_t *model_expert_count(const model *m);

#endif
