/* SPDX-License-Identifier: Apache-2.0 */
/* attention_graphs.h: attention inside packed segments as graphs for cuDNN, forward and backward.
 *
 * The segments of a packed array are what cuDNN calls a ragged batch. Entry b has length[b] tokens
 * from token cu[b] on, so its first element, in an array with token stride s, is cu[b] s. Lengths
 * and first elements are in device memory; a graph knows only how many segments there may be and
 * how long one may be. */
#ifndef TESSERA_TRAINER_OPS_CUDA_ATTENTION_GRAPHS_H
#define TESSERA_TRAINER_OPS_CUDA_ATTENTION_GRAPHS_H

#include "trainer/ops/attention_work.h"
#include "trainer/ops/cuda/cudnn_graph.h"

#ifdef TESSERA_CUDNN

/* A shape that a plan is made for. The heads may be some of those in the arrays. It is compared
 * byte by byte as a key, so it has no padding. */
typedef struct attention_shape {
    int64_t segments, longest; /* capacities */
    int64_t heads, kv_heads, head_dim;
    /* From one token to the next, in elements. */
    int64_t q_stride, k_stride, v_stride, o_stride, lse_stride;
    int32_t causal, deterministic;
} attention_shape;

/* Whether the library keeps row sums packed: it does for head widths that are a multiple of 32
 * bytes. For others it pads them to [segments, heads, longest, ..]. */
static inline bool attention_packs_sums(const attention_shape *shape)
{
    return shape->head_dim % ATTENTION_PACKED_STEP == 0;
}

/* The uids of the pointers that an execution hands over. First elements are int64 [segments + 1].
 * Full-head arrays are bf16 scratch with the strides of dk and dv times heads / kv_heads, used
 * where that is above 1. */
enum attention_uid {
    ATTENTION_Q = 1,
    ATTENTION_K,
    ATTENTION_V,
    ATTENTION_O,
    ATTENTION_LSE,    /* f32 */
    ATTENTION_LENGTH, /* int32 [segments]: the lengths of queries and, again, of keys */
    ATTENTION_LENGTH_KV,
    ATTENTION_FIRST_Q,
    ATTENTION_FIRST_K,
    ATTENTION_FIRST_V,
    ATTENTION_FIRST_O,
    ATTENTION_FIRST_LSE,
    ATTENTION_SCALE, /* float on the host */
    ATTENTION_MINUS, /* float on the host: minus infinity */
    ATTENTION_FORWARD_COUNT = ATTENTION_MINUS,
    ATTENTION_ONE, /* float on the host */
    ATTENTION_DO,
    ATTENTION_DQ,
    ATTENTION_DK,
    ATTENTION_DV,
    ATTENTION_SUM,     /* f32 scratch with lse's shape: row sums of do * o */
    ATTENTION_DQ_SUM,  /* f32 scratch with o's strides; used where not deterministic */
    ATTENTION_DK_FULL, /* scratch */
    ATTENTION_DV_FULL, /* scratch */
    ATTENTION_COUNT = ATTENTION_DV_FULL
};

WARN_UNUSED status attention_graph_forward(const attention_shape *shape, const cudnn_target *target,
                                           cudnn_plan *out);
WARN_UNUSED status attention_graph_backward(const attention_shape *shape,
                                            const cudnn_target *target, cudnn_plan *out);

#endif

#endif
