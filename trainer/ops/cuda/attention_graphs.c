/* SPDX-License-Identifier: Apache-2.0 */
/* attention_graphs.c: see attention_graphs.h. B segments of at most S tokens, Q query and C
 * key-value heads of width d.
 *
 *   s = scale q kt, minus infinity beyond a segment's length and, causal, right of the diagonal
 *   p = exp(s - m) / l,  m = max s,  l = sum exp(s - m);  lse = m + log l;  o = p v
 *
 * Backward (as in FlashAttention-2, Dao 2023, arXiv:2307.08691): D = sum(do * o), p = exp(s - lse),
 * dv = pt do, dp = do vt, ds = scale p (dp - D), dk = dst q, dq = ds k. dk and dv of a key-value
 * head are sums over its query heads.
 *
 * The library recognises these graphs by their form, so intermediates keep the types and the order
 * that its engines look for. Source: NVIDIA's documentation of the cuDNN 9 backend graph API. */
#include "trainer/ops/cuda/attention_graphs.h"

#ifdef TESSERA_CUDNN

#include <stdlib.h>

typedef struct tensors {
    cudnn_graph *graph;
    const attention_shape *shape;
    int64_t score[CUDNN_DIMS], row[CUDNN_DIMS]; /* [B, Q, S, S], [B, Q, S, 1] */
    cudnn_tensor q, kt, o, lse;
    cudnn_tensor length, length_kv;
    cudnn_tensor first_q, first_k, first_v, first_o, first_lse;
    cudnn_tensor scale, minus;
} tensors;

/* A tensor [B, heads, S, head_dim] in a packed array, or its transpose [B, heads, head_dim, S]. */
static cudnn_tensor packed(const tensors *set, int64_t uid, int64_t heads, int64_t stride,
                           const cudnn_tensor *first, bool transposed)
{
    const attention_shape *shape = set->shape;
    int64_t head_dim = shape->head_dim, longest = shape->longest;
    cudnn_layout layout = {.type = CUDNN_DATA_BFLOAT16,
                           .dim = {shape->segments, heads, longest, head_dim},
                           .stride = {longest * stride, head_dim, stride, 1},
                           .ragged = first};
    if (transposed) {
        layout.dim[2] = head_dim;
        layout.dim[3] = longest;
        layout.stride[2] = 1;
        layout.stride[3] = stride;
    }
    return cudnn_graph_tensor(set->graph, uid, &layout);
}

/* One float per token and head in a packed array. The library has no engine for such a tensor
 * declared with an alignment below 16 bytes; heads that begin elsewhere are copied
 * (attention_cudnn.c). */
static cudnn_tensor packed_rows(const tensors *set, int64_t uid)
{
    int64_t stride = set->shape->lse_stride, longest = set->shape->longest;
    return cudnn_graph_tensor(
        set->graph, uid,
        &(cudnn_layout){.type = CUDNN_DATA_FLOAT,
                        .dim = {set->shape->segments, set->shape->heads, longest, 1},
                        .stride = {longest * stride, 1, stride, 1},
                        .ragged = &set->first_lse});
}

/* [B, Q, S, width] f32: sums that the library wants in memory. */
static cudnn_tensor padded(const tensors *set, int64_t uid, int64_t width)
{
    int64_t heads = set->shape->heads, longest = set->shape->longest;
    return cudnn_graph_tensor(
        set->graph, uid,
        &(cudnn_layout){.type = CUDNN_DATA_FLOAT,
                        .dim = {set->shape->segments, heads, longest, width},
                        .stride = {heads * longest * width, longest * width, width, 1}});
}

static cudnn_tensor vector(cudnn_graph *graph, int64_t uid, cudnnDataType_t type, int64_t n)
{
    cudnn_layout layout = {.type = type, .dim = {n, 1, 1, 1}, .stride = {1, 1, 1, 1}};
    return cudnn_graph_tensor(graph, uid, &layout);
}

static status begin_graph(tensors *set, const attention_shape *shape)
{
    cudnn_graph *graph = calloc(1, sizeof *graph);
    if (!graph)
        return FAIL(ST_NO_MEMORY, "no memory for a cuDNN graph");
    int64_t segments = shape->segments, longest = shape->longest;
    *set = (tensors){.graph = graph,
                     .shape = shape,
                     .score = {segments, shape->heads, longest, longest},
                     .row = {segments, shape->heads, longest, 1}};
    set->length = vector(graph, ATTENTION_LENGTH, CUDNN_DATA_INT32, segments);
    set->length_kv = vector(graph, ATTENTION_LENGTH_KV, CUDNN_DATA_INT32, segments);
    set->first_q = vector(graph, ATTENTION_FIRST_Q, CUDNN_DATA_INT64, segments + 1);
    set->first_k = vector(graph, ATTENTION_FIRST_K, CUDNN_DATA_INT64, segments + 1);
    set->first_v = vector(graph, ATTENTION_FIRST_V, CUDNN_DATA_INT64, segments + 1);
    set->first_o = vector(graph, ATTENTION_FIRST_O, CUDNN_DATA_INT64, segments + 1);
    set->first_lse = vector(graph, ATTENTION_FIRST_LSE, CUDNN_DATA_INT64, segments + 1);
    set->scale = cudnn_graph_number(graph, ATTENTION_SCALE, CUDNN_DATA_FLOAT);
    set->minus = cudnn_graph_number(graph, ATTENTION_MINUS, CUDNN_DATA_FLOAT);
    set->q = packed(set, ATTENTION_Q, shape->heads, shape->q_stride, &set->first_q, false);
    set->kt = packed(set, ATTENTION_K, shape->kv_heads, shape->k_stride, &set->first_k, true);
    set->o = packed(set, ATTENTION_O, shape->heads, shape->o_stride, &set->first_o, false);
    set->lse = packed_rows(set, ATTENTION_LSE);
    return ST_OK;
}

static cudnn_tensor inner(const tensors *set, cudnnDataType_t type, const int64_t *dim)
{
    return cudnn_graph_inner(set->graph, type, dim);
}

/* mode(x) or mode(x, b) as a new tensor of x's size. */
static cudnn_tensor map(const tensors *set, cudnnPointwiseMode_t mode, cudnn_tensor x,
                        const cudnn_tensor *b)
{
    cudnn_tensor y = inner(set, CUDNN_DATA_FLOAT, x.dim);
    cudnn_graph_map(set->graph, mode, CUDNN_DATA_FLOAT, x, b, y);
    return y;
}

static cudnn_tensor compare_tensors(const tensors *set, cudnnPointwiseMode_t mode, cudnn_tensor x,
                                    const cudnn_tensor *b)
{
    cudnn_tensor y = inner(set, CUDNN_DATA_BOOLEAN, set->score);
    cudnn_graph_map(set->graph, mode, CUDNN_DATA_BOOLEAN, x, b, y);
    return y;
}

static cudnn_tensor index_of(const tensors *set, cudnn_tensor s, int64_t axis)
{
    cudnn_tensor y = inner(set, CUDNN_DATA_INT32, set->score);
    cudnn_graph_index(set->graph, axis, s, y);
    return y;
}

static cudnn_tensor select_allowed(const tensors *set, cudnn_tensor s, cudnn_tensor allowed)
{
    cudnn_tensor y = inner(set, CUDNN_DATA_FLOAT, set->score);
    cudnn_graph_select(set->graph, s, set->minus, allowed, y);
    return y;
}

static cudnn_tensor mask_padding(const tensors *set, cudnn_tensor s)
{
    cudnn_tensor row = index_of(set, s, 2), column = index_of(set, s, 3);
    cudnn_tensor a = compare_tensors(set, CUDNN_POINTWISE_CMP_LT, row, &set->length);
    cudnn_tensor b = compare_tensors(set, CUDNN_POINTWISE_CMP_LT, column, &set->length_kv);
    return select_allowed(set, s, compare_tensors(set, CUDNN_POINTWISE_LOGICAL_AND, a, &b));
}

static cudnn_tensor not_ahead(const tensors *set, cudnn_tensor s)
{
    cudnn_tensor row = index_of(set, s, 2), column = index_of(set, s, 3);
    return select_allowed(set, s, compare_tensors(set, CUDNN_POINTWISE_CMP_GE, row, &column));
}

static cudnn_tensor build_scores(const tensors *set)
{
    cudnn_tensor s = inner(set, CUDNN_DATA_FLOAT, set->score);
    cudnn_graph_matmul(set->graph, set->q, set->kt, s,
                       (cudnn_sizes){.rows = &set->length, .columns = &set->length_kv});
    return mask_padding(set, map(set, CUDNN_POINTWISE_MUL, s, &set->scale));
}

static cudnn_tensor reduce_rows(const tensors *set, cudnnReduceTensorOp_t reduction, cudnn_tensor x)
{
    cudnn_tensor y = inner(set, CUDNN_DATA_FLOAT, set->row);
    cudnn_graph_reduce(set->graph, reduction, x, y);
    return y;
}

status attention_graph_forward(const attention_shape *shape, const cudnn_target *target,
                               cudnn_plan *out)
{
    tensors set;
    TRY(begin_graph(&set, shape));
    cudnn_tensor v =
        packed(&set, ATTENTION_V, shape->kv_heads, shape->v_stride, &set.first_v, false);
    cudnn_tensor s = build_scores(&set);
    if (shape->causal)
        s = not_ahead(&set, s);
    cudnn_tensor m = reduce_rows(&set, CUDNN_REDUCE_TENSOR_MAX, s);
    cudnn_tensor exponentials =
        map(&set, CUDNN_POINTWISE_EXP, map(&set, CUDNN_POINTWISE_SUB, s, &m), NULL);
    cudnn_tensor totals = reduce_rows(&set, CUDNN_REDUCE_TENSOR_ADD, exponentials);
    cudnn_tensor log_l = map(&set, CUDNN_POINTWISE_LOG, totals, NULL);
    cudnn_graph_map(set.graph, CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, m, &log_l, set.lse);
    cudnn_tensor p = inner(&set, CUDNN_DATA_BFLOAT16, set.score);
    cudnn_graph_map(set.graph, CUDNN_POINTWISE_DIV, CUDNN_DATA_FLOAT, exponentials, &totals, p);
    cudnn_graph_matmul(set.graph, p, v, set.o,
                       (cudnn_sizes){.rows = &set.length, .inner = &set.length_kv});
    return cudnn_graph_plan(set.graph, target, out);
}

/* x [B, Q, S, S] transposed, for a product that sums over queries. */
static cudnn_tensor turned(const tensors *set, cudnn_tensor x)
{
    int64_t longest = set->shape->longest, heads = set->shape->heads;
    cudnn_tensor y = cudnn_graph_inner_as(
        set->graph,
        &(cudnn_layout){.type = CUDNN_DATA_BFLOAT16,
                        .dim = {set->shape->segments, heads, longest, longest},
                        .stride = {heads * longest * longest, longest * longest, 1, longest}});
    cudnn_graph_reshape(set->graph, x, y);
    return y;
}

/* The gradient of a key or value head: pt w, summed over the queries and over the query heads of
 * one key-value head. Where there are several query heads it goes through an array of all heads. */
static void key_gradient(const tensors *set, cudnn_tensor pt, cudnn_tensor w, int64_t uid,
                         int64_t stride, const cudnn_tensor *first, int64_t full_uid)
{
    const attention_shape *shape = set->shape;
    cudnn_sizes of = {.rows = &set->length_kv, .inner = &set->length};
    cudnn_tensor gradient = packed(set, uid, shape->kv_heads, stride, first, false);
    if (shape->heads == shape->kv_heads) {
        cudnn_graph_matmul(set->graph, pt, w, gradient, of);
        return;
    }
    /* The library takes the same first elements, scaled by the ratio of the strides. */
    cudnn_tensor full = packed(set, full_uid, shape->heads,
                               stride * (shape->heads / shape->kv_heads), first, false);
    cudnn_graph_matmul(set->graph, pt, w, full, of);
    cudnn_graph_reduce(set->graph, CUDNN_REDUCE_TENSOR_ADD, full, gradient);
}

/* dq = ds k. Without determinism it goes through an array in f32 to which blocks add in any
 * order. */
static void query_gradient(const tensors *set, cudnn_tensor ds)
{
    const attention_shape *shape = set->shape;
    int64_t head_dim = shape->head_dim, longest = shape->longest, segments = shape->segments;
    cudnn_sizes of = {.rows = &set->length, .inner = &set->length_kv};
    cudnn_tensor k = cudnn_graph_inner_as(
        set->graph,
        &(cudnn_layout){.type = CUDNN_DATA_BFLOAT16,
                        .dim = {segments, shape->kv_heads, longest, head_dim},
                        .stride = {longest * shape->k_stride, head_dim, shape->k_stride, 1},
                        .ragged = &set->first_k});
    cudnn_graph_reshape(set->graph, set->kt, k);
    cudnn_tensor dq =
        packed(set, ATTENTION_DQ, shape->heads, shape->q_stride, &set->first_q, false);
    if (shape->deterministic) {
        cudnn_graph_matmul(set->graph, ds, k, dq, of);
        return;
    }
    cudnn_layout layout = {.type = CUDNN_DATA_FLOAT,
                           .dim = {segments, shape->heads, longest, head_dim},
                           .stride = {longest * shape->o_stride, head_dim, shape->o_stride, 1},
                           .ragged = &set->first_o};
    cudnn_tensor sum = attention_packs_sums(shape)
                           ? cudnn_graph_tensor(set->graph, ATTENTION_DQ_SUM, &layout)
                           : padded(set, ATTENTION_DQ_SUM, head_dim);
    cudnn_graph_matmul(set->graph, ds, k, sum, of);
    cudnn_graph_map(set->graph, CUDNN_POINTWISE_IDENTITY, CUDNN_DATA_FLOAT, sum, NULL, dq);
}

status attention_graph_backward(const attention_shape *shape, const cudnn_target *target,
                                cudnn_plan *out)
{
    tensors set;
    TRY(begin_graph(&set, shape));
    cudnn_tensor vt =
        packed(&set, ATTENTION_V, shape->kv_heads, shape->v_stride, &set.first_v, true);
    cudnn_tensor do_ =
        packed(&set, ATTENTION_DO, shape->heads, shape->o_stride, &set.first_o, false);
    cudnn_tensor one = cudnn_graph_number(set.graph, ATTENTION_ONE, CUDNN_DATA_FLOAT);
    cudnn_tensor sum = attention_packs_sums(shape) ? packed_rows(&set, ATTENTION_SUM)
                                                   : padded(&set, ATTENTION_SUM, 1);
    cudnn_tensor product = map(&set, CUDNN_POINTWISE_MUL, do_, &set.o);
    cudnn_graph_map(set.graph, CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT,
                    reduce_rows(&set, CUDNN_REDUCE_TENSOR_ADD, product), &one, sum);

    cudnn_tensor s = map(&set, CUDNN_POINTWISE_SUB, build_scores(&set), &set.lse);
    if (shape->causal)
        s = not_ahead(&set, s);
    cudnn_tensor p = map(&set, CUDNN_POINTWISE_EXP, s, NULL);
    key_gradient(&set, turned(&set, p), do_, ATTENTION_DV, shape->v_stride, &set.first_v,
                 ATTENTION_DV_FULL);

    cudnn_tensor dp = inner(&set, CUDNN_DATA_FLOAT, set.score);
    cudnn_graph_matmul(set.graph, do_, vt, dp,
                       (cudnn_sizes){.rows = &set.length, .columns = &set.length_kv});
    cudnn_tensor ds = map(&set, CUDNN_POINTWISE_MUL, map(&set, CUDNN_POINTWISE_SUB, dp, &sum), &p);
    ds = map(&set, CUDNN_POINTWISE_MUL, ds, &set.scale);
    key_gradient(&set, turned(&set, ds), set.q, ATTENTION_DK, shape->k_stride, &set.first_k,
                 ATTENTION_DK_FULL);
    query_gradient(&set, ds);
    return cudnn_graph_plan(set.graph, target, out);
}

#endif
