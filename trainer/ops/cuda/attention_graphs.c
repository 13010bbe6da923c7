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

/* A tensor [B, heads, S, d] in a packed array, or its transpose [B, heads, d, S]. */
static cudnn_tensor packed(const tensors *t, int64_t uid, int64_t heads, int64_t stride,
                           const cudnn_tensor *first, bool transposed)
{
    const attention_shape *a = t->shape;
    int64_t d = a->head_dim, s = a->longest;
    cudnn_layout l = {.type = CUDNN_DATA_BFLOAT16,
                      .dim = {a->segments, heads, s, d},
                      .stride = {s * stride, d, stride, 1},
                      .ragged = first};
    if (transposed) {
        l.dim[2] = d;
        l.dim[3] = s;
        l.stride[2] = 1;
        l.stride[3] = stride;
    }
    return cudnn_graph_tensor(t->graph, uid, &l);
}

/* One float per token and head in a packed array. The library has no engine for such a tensor
 * declared with an alignment below 16 bytes; heads that begin elsewhere are copied
 * (attention_cudnn.c). */
static cudnn_tensor packed_rows(const tensors *t, int64_t uid)
{
    int64_t stride = t->shape->lse_stride, s = t->shape->longest;
    return cudnn_graph_tensor(t->graph, uid,
                              &(cudnn_layout){.type = CUDNN_DATA_FLOAT,
                                              .dim = {t->shape->segments, t->shape->heads, s, 1},
                                              .stride = {s * stride, 1, stride, 1},
                                              .ragged = &t->first_lse});
}

/* [B, Q, S, width] f32: sums that the library wants in memory. */
static cudnn_tensor padded(const tensors *t, int64_t uid, int64_t width)
{
    int64_t heads = t->shape->heads, s = t->shape->longest;
    return cudnn_graph_tensor(t->graph, uid,
                              &(cudnn_layout){.type = CUDNN_DATA_FLOAT,
                                              .dim = {t->shape->segments, heads, s, width},
                                              .stride = {heads * s * width, s * width, width, 1}});
}

static cudnn_tensor vector(cudnn_graph *g, int64_t uid, cudnnDataType_t type, int64_t n)
{
    cudnn_layout l = {.type = type, .dim = {n, 1, 1, 1}, .stride = {1, 1, 1, 1}};
    return cudnn_graph_tensor(g, uid, &l);
}

static status begin_graph(tensors *t, const attention_shape *a)
{
    cudnn_graph *g = calloc(1, sizeof *g);
    if (!g)
        return FAIL(ST_NO_MEMORY, "no memory for a cuDNN graph");
    int64_t b = a->segments, s = a->longest;
    *t =
        (tensors){.graph = g, .shape = a, .score = {b, a->heads, s, s}, .row = {b, a->heads, s, 1}};
    t->length = vector(g, ATTENTION_LENGTH, CUDNN_DATA_INT32, b);
    t->length_kv = vector(g, ATTENTION_LENGTH_KV, CUDNN_DATA_INT32, b);
    t->first_q = vector(g, ATTENTION_FIRST_Q, CUDNN_DATA_INT64, b + 1);
    t->first_k = vector(g, ATTENTION_FIRST_K, CUDNN_DATA_INT64, b + 1);
    t->first_v = vector(g, ATTENTION_FIRST_V, CUDNN_DATA_INT64, b + 1);
    t->first_o = vector(g, ATTENTION_FIRST_O, CUDNN_DATA_INT64, b + 1);
    t->first_lse = vector(g, ATTENTION_FIRST_LSE, CUDNN_DATA_INT64, b + 1);
    t->scale = cudnn_graph_number(g, ATTENTION_SCALE, CUDNN_DATA_FLOAT);
    t->minus = cudnn_graph_number(g, ATTENTION_MINUS, CUDNN_DATA_FLOAT);
    t->q = packed(t, ATTENTION_Q, a->heads, a->q_stride, &t->first_q, false);
    t->kt = packed(t, ATTENTION_K, a->kv_heads, a->k_stride, &t->first_k, true);
    t->o = packed(t, ATTENTION_O, a->heads, a->o_stride, &t->first_o, false);
    t->lse = packed_rows(t, ATTENTION_LSE);
    return ST_OK;
}

static cudnn_tensor inner(const tensors *t, cudnnDataType_t type, const int64_t *dim)
{
    return cudnn_graph_inner(t->graph, type, dim);
}

/* f(x) or f(x, b) as a new tensor of x's size. */
static cudnn_tensor map(const tensors *t, cudnnPointwiseMode_t f, cudnn_tensor x,
                        const cudnn_tensor *b)
{
    cudnn_tensor y = inner(t, CUDNN_DATA_FLOAT, x.dim);
    cudnn_graph_map(t->graph, f, CUDNN_DATA_FLOAT, x, b, y);
    return y;
}

static cudnn_tensor compare_tensors(const tensors *t, cudnnPointwiseMode_t f, cudnn_tensor x,
                                    const cudnn_tensor *b)
{
    cudnn_tensor y = inner(t, CUDNN_DATA_BOOLEAN, t->score);
    cudnn_graph_map(t->graph, f, CUDNN_DATA_BOOLEAN, x, b, y);
    return y;
}

static cudnn_tensor index_of(const tensors *t, cudnn_tensor s, int64_t axis)
{
    cudnn_tensor y = inner(t, CUDNN_DATA_INT32, t->score);
    cudnn_graph_index(t->graph, axis, s, y);
    return y;
}

static cudnn_tensor select_allowed(const tensors *t, cudnn_tensor s, cudnn_tensor allowed)
{
    cudnn_tensor y = inner(t, CUDNN_DATA_FLOAT, t->score);
    cudnn_graph_select(t->graph, s, t->minus, allowed, y);
    return y;
}

static cudnn_tensor mask_padding(const tensors *t, cudnn_tensor s)
{
    cudnn_tensor row = index_of(t, s, 2), column = index_of(t, s, 3);
    cudnn_tensor a = compare_tensors(t, CUDNN_POINTWISE_CMP_LT, row, &t->length);
    cudnn_tensor b = compare_tensors(t, CUDNN_POINTWISE_CMP_LT, column, &t->length_kv);
    return select_allowed(t, s, compare_tensors(t, CUDNN_POINTWISE_LOGICAL_AND, a, &b));
}

static cudnn_tensor not_ahead(const tensors *t, cudnn_tensor s)
{
    cudnn_tensor row = index_of(t, s, 2), column = index_of(t, s, 3);
    return select_allowed(t, s, compare_tensors(t, CUDNN_POINTWISE_CMP_GE, row, &column));
}

static cudnn_tensor build_scores(const tensors *t)
{
    cudnn_tensor s = inner(t, CUDNN_DATA_FLOAT, t->score);
    cudnn_graph_matmul(t->graph, t->q, t->kt, s,
                       (cudnn_sizes){.rows = &t->length, .columns = &t->length_kv});
    return mask_padding(t, map(t, CUDNN_POINTWISE_MUL, s, &t->scale));
}

static cudnn_tensor reduce_rows(const tensors *t, cudnnReduceTensorOp_t f, cudnn_tensor x)
{
    cudnn_tensor y = inner(t, CUDNN_DATA_FLOAT, t->row);
    cudnn_graph_reduce(t->graph, f, x, y);
    return y;
}

status attention_graph_forward(const attention_shape *a, const cudnn_target *target,
                               cudnn_plan *out)
{
    tensors t;
    TRY(begin_graph(&t, a));
    cudnn_tensor v = packed(&t, ATTENTION_V, a->kv_heads, a->v_stride, &t.first_v, false);
    cudnn_tensor s = build_scores(&t);
    if (a->causal)
        s = not_ahead(&t, s);
    cudnn_tensor m = reduce_rows(&t, CUDNN_REDUCE_TENSOR_MAX, s);
    cudnn_tensor e = map(&t, CUDNN_POINTWISE_EXP, map(&t, CUDNN_POINTWISE_SUB, s, &m), NULL);
    cudnn_tensor l = reduce_rows(&t, CUDNN_REDUCE_TENSOR_ADD, e);
    cudnn_tensor log_l = map(&t, CUDNN_POINTWISE_LOG, l, NULL);
    cudnn_graph_map(t.graph, CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, m, &log_l, t.lse);
    cudnn_tensor p = inner(&t, CUDNN_DATA_BFLOAT16, t.score);
    cudnn_graph_map(t.graph, CUDNN_POINTWISE_DIV, CUDNN_DATA_FLOAT, e, &l, p);
    cudnn_graph_matmul(t.graph, p, v, t.o, (cudnn_sizes){.rows = &t.length, .inner = &t.length_kv});
    return cudnn_graph_plan(t.graph, target, out);
}

/* x [B, Q, S, S] transposed, for a product that sums over queries. */
static cudnn_tensor turned(const tensors *t, cudnn_tensor x)
{
    int64_t s = t->shape->longest, heads = t->shape->heads;
    cudnn_tensor y =
        cudnn_graph_inner_as(t->graph, &(cudnn_layout){.type = CUDNN_DATA_BFLOAT16,
                                                       .dim = {t->shape->segments, heads, s, s},
                                                       .stride = {heads * s * s, s * s, 1, s}});
    cudnn_graph_reshape(t->graph, x, y);
    return y;
}

/* The gradient of a key or value head: pt w, summed over the queries and over the query heads of
 * one key-value head. Where there are several query heads it goes through an array of all heads. */
static void key_gradient(const tensors *t, cudnn_tensor pt, cudnn_tensor w, int64_t uid,
                         int64_t stride, const cudnn_tensor *first, int64_t full_uid)
{
    const attention_shape *a = t->shape;
    cudnn_sizes of = {.rows = &t->length_kv, .inner = &t->length};
    cudnn_tensor d = packed(t, uid, a->kv_heads, stride, first, false);
    if (a->heads == a->kv_heads) {
        cudnn_graph_matmul(t->graph, pt, w, d, of);
        return;
    }
    /* The library takes the same first elements, scaled by the ratio of the strides. */
    cudnn_tensor full =
        packed(t, full_uid, a->heads, stride * (a->heads / a->kv_heads), first, false);
    cudnn_graph_matmul(t->graph, pt, w, full, of);
    cudnn_graph_reduce(t->graph, CUDNN_REDUCE_TENSOR_ADD, full, d);
}

/* dq = ds k. Without determinism it goes through an array in f32 to which blocks add in any order.
 */
static void query_gradient(const tensors *t, cudnn_tensor ds)
{
    const attention_shape *a = t->shape;
    int64_t d = a->head_dim, s = a->longest, b = a->segments;
    cudnn_sizes of = {.rows = &t->length, .inner = &t->length_kv};
    cudnn_tensor k = cudnn_graph_inner_as(
        t->graph, &(cudnn_layout){.type = CUDNN_DATA_BFLOAT16,
                                  .dim = {b, a->kv_heads, s, d},
                                  .stride = {s * a->k_stride, d, a->k_stride, 1},
                                  .ragged = &t->first_k});
    cudnn_graph_reshape(t->graph, t->kt, k);
    cudnn_tensor dq = packed(t, ATTENTION_DQ, a->heads, a->q_stride, &t->first_q, false);
    if (a->deterministic) {
        cudnn_graph_matmul(t->graph, ds, k, dq, of);
        return;
    }
    cudnn_layout l = {.type = CUDNN_DATA_FLOAT,
                      .dim = {b, a->heads, s, d},
                      .stride = {s * a->o_stride, d, a->o_stride, 1},
                      .ragged = &t->first_o};
    cudnn_tensor sum = attention_packs_sums(a) ? cudnn_graph_tensor(t->graph, ATTENTION_DQ_SUM, &l)
                                               : padded(t, ATTENTION_DQ_SUM, d);
    cudnn_graph_matmul(t->graph, ds, k, sum, of);
    cudnn_graph_map(t->graph, CUDNN_POINTWISE_IDENTITY, CUDNN_DATA_FLOAT, sum, NULL, dq);
}

status attention_graph_backward(const attention_shape *a, const cudnn_target *target,
                                cudnn_plan *out)
{
    tensors t;
    TRY(begin_graph(&t, a));
    cudnn_tensor vt = packed(&t, ATTENTION_V, a->kv_heads, a->v_stride, &t.first_v, true);
    cudnn_tensor do_ = packed(&t, ATTENTION_DO, a->heads, a->o_stride, &t.first_o, false);
    cudnn_tensor one = cudnn_graph_number(t.graph, ATTENTION_ONE, CUDNN_DATA_FLOAT);
    cudnn_tensor sum =
        attention_packs_sums(a) ? packed_rows(&t, ATTENTION_SUM) : padded(&t, ATTENTION_SUM, 1);
    cudnn_tensor product = map(&t, CUDNN_POINTWISE_MUL, do_, &t.o);
    cudnn_graph_map(t.graph, CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT,
                    reduce_rows(&t, CUDNN_REDUCE_TENSOR_ADD, product), &one, sum);

    cudnn_tensor s = map(&t, CUDNN_POINTWISE_SUB, build_scores(&t), &t.lse);
    if (a->causal)
        s = not_ahead(&t, s);
    cudnn_tensor p = map(&t, CUDNN_POINTWISE_EXP, s, NULL);
    key_gradient(&t, turned(&t, p), do_, ATTENTION_DV, a->v_stride, &t.first_v, ATTENTION_DV_FULL);

    cudnn_tensor dp = inner(&t, CUDNN_DATA_FLOAT, t.score);
    cudnn_graph_matmul(t.graph, do_, vt, dp,
                       (cudnn_sizes){.rows = &t.length, .columns = &t.length_kv});
    cudnn_tensor ds = map(&t, CUDNN_POINTWISE_MUL, map(&t, CUDNN_POINTWISE_SUB, dp, &sum), &p);
    ds = map(&t, CUDNN_POINTWISE_MUL, ds, &t.scale);
    key_gradient(&t, turned(&t, ds), t.q, ATTENTION_DK, a->k_stride, &t.first_k, ATTENTION_DK_FULL);
    query_gradient(&t, ds);
    return cudnn_graph_plan(t.graph, target, out);
}

#endif
