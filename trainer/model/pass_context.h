/* pass_context.h: what every block needs while one micro-batch passes through the model. */
#ifndef TESSERA_TRAINER_MODEL_PASS_CONTEXT_H
#define TESSERA_TRAINER_MODEL_PASS_CONTEXT_H

#include "trainer/device/backend.h"
#include "trainer/device/graph_replay.h"
#include "trainer/model/device_batch.h"
#include "trainer/model/dims.h"
#include "trainer/model/unit_order.h"
#include "trainer/parallel/mesh.h"
#include "trainer/parallel/fsdp.h"

struct kv_cache;     /* kv_cache.h */
struct lora_scratch; /* lora.h */

typedef struct pass_context {
    stream *s;
    const model_dims *d;
    const device_batch *b;
    const mesh *mesh;             /* the ranks that train with this one */
    fsdp_units *fsdp_units;       /* entered before a block's weights are used */
    batch_caps n;                 /* sizes that ops run on: T = n.tokens, S = n.patches */
    int64_t context_tokens;       /* Tc: T of all tensor ranks */
    int64_t all_tokens;           /* A: Tc of all context ranks, the whole row */
    size_t act, acc;              /* bytes of an element */
    const struct kv_cache *cache; /* NULL but for generation */
    const struct lora_scratch *lora;
    bool step;               /* of training: pieces may be captured (run_piece) */
    const void *router_bias; /* [layers, E] act, added to the logits; NULL: none */
    /* rotary tables of this batch, acc */
    const void *text_cos, *text_sin;     /* [Tc, head_dim/2] */
    const void *vision_cos, *vision_sin; /* [S, vision head_dim/2] */
} pass_context;

/* Before a piece of a step that cuda_graph.scope may name (device/graph_replay.h): true in out_done
 * if it was queued as captured before. index: layer or block. What the piece does goes to
 * graph_replay_end. */
WARN_UNUSED static inline status run_piece(const pass_context *r, int piece, int pass,
                                           int64_t index, bool *out_done)
{
    *out_done = false;
    if (!r->step)
        return ST_OK;
    return graph_replay_begin(
        r->s,
        &(graph_replay_key){
            .piece = piece, .pass = pass, .index = (int32_t)index, .variant = r->b->variant},
        out_done);
}

/* Sizes that layouts are made for. */
typedef struct shape {
    const model_dims *d;
    batch_caps cap; /* of this rank */
    size_t act, acc;
    const layout *ranks;
    int64_t context_tokens, all_tokens; /* Tc, A as above */
} shape;

/* Of the dimension that tensor ranks share, this rank's part. */
static inline int64_t tensor_part(const layout *l, int64_t n)
{
    return n / l->tensor;
}

static inline row_share row_share_of(const mesh *m)
{
    return (row_share){.context = m->layout.context,
                       .tensor = m->layout.tensor,
                       .context_rank = m->place.context,
                       .tensor_rank = m->place.tensor,
                       .blind = m->place.pipeline > 0};
}

/* Element `i` of an array with items of `size` bytes. */
static inline void *at(const void *array, int64_t i, size_t size)
{
    return (char *)array + (size_t)i * size;
}

#endif
