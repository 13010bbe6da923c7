/* attention_graphs.h: attention inside packed segments as graphs for cuDNN, forward and backward.
 *
 * Segments of a packed array are a ragged batch: entry b has length[b] tokens from token cu[b] on,
 * so that its first element of an array with token stride s is cu[b] s. All of it is in device
 * memory; a graph knows only how many segments there may be and how long one may be. */
#ifndef TESSERA_TRAINER_OPS_CUDA_ATTENTION_GRAPHS_H
#define TESSERA_TRAINER_OPS_CUDA_ATTENTION_GRAPHS_H

#include "trainer/ops/cuda/cudnn_graph.h"

#ifdef TESSERA_CUDNN

/* Heads may be a part of those that stand in the arrays. Kept as a key: no padding. */
typedef struct attention_shape {
    int64_t segments, longest; /* capacities */
    int64_t heads, kv_heads, head_dim;
    int64_t q_stride, k_stride, v_stride, o_stride, lse_stride; /* of a token, elements */
    int32_t causal, deterministic;
} attention_shape;

/* Head widths of whole 32 bytes, for which the library keeps row sums packed; others are padded to
 * [segments, heads, longest, ..]. */
static inline bool attention_packs_sums(const attention_shape *a)
{
    return a->head_dim % 16 == 0;
}

/* What an execution hands over. First elements: int64 [segments + 1]. Full-head arrays: bf16
 * scratch with the strides of dk and dv times heads / kv_heads, where that is above 1. */
enum attention_uid {
    ATTENTION_Q = 1,
    ATTENTION_K,
    ATTENTION_V,
    ATTENTION_O,
    ATTENTION_LSE,    /* f32 */
    ATTENTION_LENGTH, /* int32 [segments], as query lengths and again as key lengths */
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
    ATTENTION_SUM,     /* f32 scratch as lse: row sums of do * o */
    ATTENTION_DQ_SUM,  /* f32 scratch with o's strides; where not deterministic */
    ATTENTION_DK_FULL, /* scratch */
    ATTENTION_DV_FULL, /* scratch */
    ATTENTION_COUNT = ATTENTION_DV_FULL
};

WARN_UNUSED status attention_graph_forward(const attention_shape *a, const cudnn_target *t,
                                           cudnn_plan *out);
WARN_UNUSED status attention_graph_backward(const attention_shape *a, const cudnn_target *t,
                                            cudnn_plan *out);

#endif

#endif
