/* SPDX-License-Identifier: Apache-2.0 */
/* qwen3vl.h: the whole model: forward pass, loss and backward pass of one micro-batch.
 *
 * The equations and their sources are in equations.md. A program makes one model over a registry of
 * parameters (params.h) and runs micro-batches (device_batch.h) through it:
 *
 *   model_new                        once, with the largest batch that will come
 *   model_forward_backward           per micro-batch, without a pipeline
 *   model_exchange_stage, model_run       per pass, with one (parallel/pipeline_stages.h)
 *   model_forward                    evaluation
 *   model_forward_cached, model_logits    generation
 *
 * Losses and gradients are sums over targets of weight * nll. The optimiser divides them by the
 * weight of the step, so that the result does not depend on packing, accumulation or the number of
 * ranks. The auxiliary loss enters as coefficient * weight of the micro-batch * aux; the product of
 * the first two comes with the batch (batch/stager.h, stager_mark). */
#ifndef TESSERA_TRAINER_MODEL_QWEN3VL_H
#define TESSERA_TRAINER_MODEL_QWEN3VL_H

#include "trainer/model/dims/dims.h"
#include "trainer/model/layers/device_batch.h"
#include "trainer/model/layers/recompute.h"
#include "trainer/model/params/params.h"
#include "trainer/parallel/pipeline_stages.h"

typedef struct model model;
typedef struct kv_cache kv_cache;               /* kv_cache.h */
typedef struct exchange_window exchange_window; /* exchange.h */

/* How token copies reach experts on other ranks (exchange.h). */
typedef enum exchange_way {
    EXCHANGE_BY_HOST,    /* the host reads the counts, once per layer and pass */
    EXCHANGE_IF_REACHED, /* on the device if ranks reach each other's memory, else by the host */
    EXCHANGE_BY_DEVICE   /* on the device; ST_UNAVAILABLE if ranks do not reach each other */
} exchange_way;

typedef struct model_options {
    batch_caps cap;         /* largest micro-batch, counted in whole rows before ranks share them */
    const mesh *mesh;       /* borrowed; NULL: the mesh of the registry, or a single rank */
    bool training;          /* activations are kept and gradients computed */
    recomputes recomputed;  /* what backward computes again instead of keeping it */
    bool tower_frozen;      /* no vision block is trained: only the inputs of mergers are kept */
    bool vision_frozen;     /* the mergers are not trained either: nothing of vision is kept */
    double router_aux_coef; /* coefficient of the load-balancing loss; 0: off */
    int64_t lora_rank;      /* rank of the adapters; 0: there are none */
    bool lora_experts;      /* some adapters belong to experts */
    bool lora_dora;         /* adapters have lengths (layers.h) */
    int64_t logit_rows;     /* rows of logits held at once; 0: LOGIT_ROWS_DEFAULT (decoder.h) */
    exchange_way exchange;
} model_options;

/* Sets tower_frozen, vision_frozen, lora_rank, lora_experts and lora_dora from what the registry
 * says. */
void model_options_freeze(model_options *options, const params *registry);

/* Makes a model that computes with the parameters of `registry` and allocates the device memory of
 * its activations. d is copied; `registry` and options->mesh are borrowed until model_free. With
 * device exchange every rank calls it. Errors: ST_NO_MEMORY; ST_UNAVAILABLE as EXCHANGE_BY_DEVICE
 * says; ST_INTERNAL if the options say that vision is frozen and the registry says otherwise. */
WARN_UNUSED status model_new(stream *queue, const model_dims *dims, params *registry,
                             const model_options *options, model **out);
/* Frees *mp and sets it to NULL; NULL in it is accepted. */
void model_free(model **mp, stream *queue);
/* How many rows of logits a model with these options holds at once. */
int64_t model_logit_rows(const model_options *options);
/* Device bytes of a model's activations. The three scratch regions use the same bytes in turn, so
 * total counts only the largest of them. */
typedef struct model_regions {
    int64_t vision_kept, text_kept; /* kept from forward to backward */
    int64_t vision_scratch, text_scratch, head_scratch;
    int64_t window; /* memory that ranks which share experts open to each other, allocated apart */
    int64_t total;
} model_regions;
/* Computes the regions of such a model without allocating anything on a device. */
WARN_UNUSED status model_regions_of(const model_dims *dims, const model_options *options,
                                    const backend_vtable *backend, model_regions *out);
/* Bytes that one decoder layer (the last) and one vision block take for arrays of these kinds
 * (recompute.h). *out_block is 0 if this rank has no vision tower. */
WARN_UNUSED status model_kinds_bytes(const model_dims *dims, const model_options *options,
                                     const backend_vtable *backend, unsigned kinds,
                                     int64_t *out_layer, int64_t *out_block);
/* Device memory that the passes of a step write. The caller clears the sums when a step starts. */
typedef struct loss_sums {
    double *loss;   /* sum of weight * nll, without the auxiliary loss; added to */
    double *weight; /* sum of weights; added to */
    void *aux;      /* [1] acc: auxiliary loss of the last micro-batch; overwritten */
} loss_sums;

/* One pass of a micro-batch through this rank's part of the model. `flight` names the buffers that
 * keep its activations from forward to backward: a number below model_flights, used by one
 * micro-batch at a time. */
typedef struct model_pass {
    pass_kind kind;
    int flight;
    const device_batch *batch;
} model_pass;

/* How many micro-batches a model can have between their forward and their backward. */
int model_flights(const model *net);
/* The same for a model with these options: one, or with a pipeline as many as its 1F1B schedule
 * has under way on this stage. */
int model_flights_of(const model_options *options);
/* Exchanges activations and gradients with the neighbouring pipeline stages: sends what the last
 * pass made and receives what `next` needs. Called before every pass, and with PASS_NONE after the
 * last one. Does nothing if there is one stage. */
WARN_UNUSED status model_exchange_stage(model *net, stream *queue, const model_pass *next);
/* Runs one training pass: adds to the sums in a pass with a loss, and to the gradients of the
 * parameters in a pass with a backward. ST_INTERNAL for a model made without training. Queues work
 * on `queue` and does not wait. */
WARN_UNUSED status model_run(model *net, stream *queue, const model_pass *step,
                             const loss_sums *sums);
/* Forward, loss and backward of a micro-batch on a rank that has the whole model. */
WARN_UNUSED status model_forward_backward(model *net, stream *queue, const device_batch *batch,
                                          const loss_sums *sums);
/* Forward and loss without gradients. nll [cap.targets] acc, the negative log-likelihood of
 * each target, and best [cap.targets] int32, its likeliest token, are written if not NULL. Every
 * stage of a pipeline calls it; only the last one writes results. */
WARN_UNUSED status model_forward(model *net, stream *queue, const device_batch *batch,
                                 const loss_sums *sums, void *nll, int32_t *best);
/* Forward up to the last hidden states, for generation: reads and fills the cache of keys and
 * values, and computes no loss. Every rank of the mesh calls it. */
WARN_UNUSED status model_forward_cached(model *net, stream *queue, const device_batch *batch,
                                        const kv_cache *cache);
/* True on the last pipeline stage, which has the last hidden states and so chooses tokens. */
bool model_has_head(const model *net);
/* After model_forward or model_forward_cached: writes the logits [count, V] act of `count` tokens
 * of this rank. tokens [count]: their numbers in the rank's batch, on the device. Every rank for
 * which model_has_head is true calls it, also with count = 0. */
WARN_UNUSED status model_logits(model *net, stream *queue, const int32_t *tokens, int64_t count,
                                void *out_logits);
/* Adds bias [L, E] act, device memory that the caller keeps, to the routers' logits from the next
 * call on; NULL ends it. Benches make uneven expert loads with it. */
void model_bias_router(model *net, const void *bias);
/* The window through which this model's ranks exchange token copies; NULL if no experts are
 * shared or the exchange goes by the host. */
const exchange_window *model_exchange(const model *net);
/* Token copies per layer and expert of the last forward: [L, E] int32 on the device; NULL for a
 * model without experts. */
const int32_t *model_expert_count(const model *net);

/* Finds the outputs of a model's units (unit_order.h) in the last training forward, as far as they
 * are still kept. The search for the place where a value first became infinite or NaN uses it
 * (run/nonfinite.c). */

typedef struct model_output {
    int unit;
    bool arrived;  /* it came from the pipeline stage before */
    const void *x; /* [count] act on the device; borrowed, valid until the next pass */
    int64_t count;
} model_output;

/* Writes the outputs of the last micro-batch of flight `number`, in forward order, to out, which has room
 * for unit_count entries, and returns their number. The last entry is the residual stream after the
 * last layer: anything that went wrong earlier and reached the text shows there too. */
int model_outputs(const model *net, int number, const device_batch *batch, model_output *out);

#endif
