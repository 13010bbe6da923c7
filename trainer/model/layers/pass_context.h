/* SPDX-License-Identifier: Apache-2.0 */
/* pass_context.h: what every part of the model needs while one micro-batch passes through it.
 *
 * Model functions take it first, as `ctx`, and most only read it; `at` below indexes untyped
 * arrays. */
#ifndef TESSERA_TRAINER_MODEL_LAYERS_PASS_CONTEXT_H
#define TESSERA_TRAINER_MODEL_LAYERS_PASS_CONTEXT_H

#include "trainer/device/backend.h"
#include "trainer/device/graph_replay.h"
#include "trainer/model/dims/dims.h"
#include "trainer/model/layers/device_batch.h"
#include "trainer/model/params/unit_order.h"
#include "trainer/parallel/fsdp.h"
#include "trainer/parallel/mesh.h"

struct kv_cache;     /* kv_cache.h */
struct lora_scratch; /* layers.h */

typedef struct pass_context {
    stream *stream;
    const model_dims *dims;
    const device_batch *batch;
    const mesh *mesh;             /* the ranks that train together with this one */
    fsdp_units *fsdp_units;       /* a part enters its FSDP unit before it uses its weights */
    batch_caps sizes;             /* sizes that ops run on: T tokens, S patches */
    int64_t context_tokens;       /* Tc: the tokens of all tensor ranks */
    int64_t all_tokens;           /* A: the tokens of all context ranks, which are the whole row */
    size_t act, acc;              /* bytes of an element of either type */
    const struct kv_cache *cache; /* NULL except in generation */
    const struct lora_scratch *lora;
    bool step;               /* a training step, whose pieces may be captured (run_piece) */
    const void *router_bias; /* [layers, E] act, added to the routers' logits; NULL: none */
    /* rotary tables of this batch, acc */
    const void *text_cos, *text_sin;     /* [Tc, head_dim/2] */
    const void *vision_cos, *vision_sin; /* [S, vision head_dim/2] */
} pass_context;

/* Called before a piece of a step that cuda_graph.scope may have captured (device/graph_replay.h).
 * *out_done is true if the piece was captured earlier and has now been queued as a graph; otherwise
 * the caller queues the work itself and passes its status to graph_replay_end. index: the number of
 * the layer, block or unit. */
WARN_UNUSED static inline status run_piece(const pass_context *ctx, int piece, int pass,
                                           int64_t index, bool *out_done)
{
    *out_done = false;
    if (!ctx->step)
        return ST_OK;
    return graph_replay_begin(
        ctx->stream,
        &(graph_replay_key){
            .piece = piece, .pass = pass, .index = (int32_t)index, .variant = ctx->batch->variant},
        out_done);
}

/* The sizes that device arrays are laid out for. */
typedef struct shape {
    const model_dims *dims;
    batch_caps cap;  /* the largest micro-batch of this rank */
    size_t act, acc; /* bytes of an element */
    const layout *ranks;
    int64_t context_tokens, all_tokens; /* Tc and A of that micro-batch */
} shape;

/* This rank's part of a dimension of size `count` that tensor ranks divide among them. */
static inline int64_t tensor_part(const layout *degrees, int64_t count)
{
    return count / degrees->tensor;
}

/* How the ranks of mesh `ranks` share a row, and the place of this one among them. */
static inline row_share row_share_of(const mesh *ranks)
{
    return (row_share){.context = ranks->layout.context,
                       .tensor = ranks->layout.tensor,
                       .context_rank = ranks->place.context,
                       .tensor_rank = ranks->place.tensor,
                       .blind = ranks->place.pipeline > 0};
}

/* Address of element `index` of an array whose elements have `size` bytes. */
static inline void *at(const void *array, int64_t index, size_t size)
{
    return (char *)array + (size_t)index * size;
}

#endif
