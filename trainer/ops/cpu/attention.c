/* attention.c: softmax attention inside segments on the CPU (attention.h).
 *
 * A block of BLOCK_Q queries meets all of its keys at once: first those of the segment's prefix, if
 * it has one, then its own. Only the scores [BLOCK_Q, keys] of one block are held, so memory grows
 * with a segment's length and not with its square. A forward task is a (segment, query head). A
 * backward task is a (segment and its branches, key-value head) that sums its segments and query
 * heads in order, so no two threads add to the same place. */
#include <limits.h>
#include <string.h>

#include "trainer/ops/cpu/attention_head.h"
#include "trainer/ops/cpu/real_blas.h"

enum { BLOCK_Q = 64 };

/* Checks that the borders of segments of `what` ascend from 0 and stay within `tokens`.
 * *out_longest is the length of the longest segment. */
static status borders_check(const char *what, const int32_t *cu, int64_t segments, int64_t tokens,
                            int64_t *out_longest)
{
    int64_t longest = 0;
    if (segments > 0 && cu[0] != 0)
        return FAIL(ST_BAD_INPUT,
                    "attention: the first segment of %s begins at %d; it must begin at 0", what,
                    cu[0]);
    for (int64_t i = 0; i < segments; i++) {
        if (cu[i + 1] < cu[i] || cu[i + 1] > tokens)
            return FAIL(ST_BAD_INPUT,
                        "attention: segment %lld is [%d, %d), which is not an ascending range "
                        "within %lld %s",
                        (long long)i, cu[i], cu[i + 1], (long long)tokens, what);
        if (cu[i + 1] - cu[i] > longest)
            longest = cu[i + 1] - cu[i];
    }
    *out_longest = longest;
    return ST_OK;
}

/* Checks that every query is a key of its segment, and comes after the query before it. */
static status places_check(const int32_t *cu, const int32_t *cu_keys, int64_t segments,
                           const int32_t *place)
{
    for (int64_t s = 0; s < segments; s++)
        for (int64_t i = cu[s]; i < cu[s + 1]; i++)
            if (place[i] < cu_keys[s] || place[i] >= cu_keys[s + 1] ||
                (i > cu[s] && place[i] <= place[i - 1]))
                return FAIL(ST_BAD_INPUT,
                            "attention: query %lld is at key %d, which is not inside [%d, %d) or "
                            "does not rise",
                            (long long)i, place[i], cu_keys[s], cu_keys[s + 1]);
    return ST_OK;
}

/* The arguments that forward and backward share. */
typedef struct attention_shape {
    int64_t tokens, heads, kv_heads, head_dim, segments, keys;
    const int32_t *cu, *cu_keys, *place, *prefix;
    const real *q, *k, *v;
    int64_t q_stride, k_stride, v_stride, o_stride;
    bool causal;
    real scale;
} attention_shape;

/* args: an attention_fwd_args or an attention_bwd_args. */
#define SHAPE_OF(args)                                                                             \
    {                                                                                              \
        .tokens = (args)->tokens, .heads = (args)->heads, .kv_heads = (args)->kv_heads,            \
        .head_dim = (args)->head_dim, .segments = (args)->segments,                                \
        .keys = (args)->cu_keys ? (args)->keys : (args)->tokens, .cu = (args)->cu,                 \
        .cu_keys = (args)->cu_keys ? (args)->cu_keys : (args)->cu,                                 \
        .place = (args)->cu_keys ? (args)->place : NULL, .prefix = (args)->prefix, .q = (args)->q, \
        .k = (args)->k, .v = (args)->v, .q_stride = (args)->q_stride,                              \
        .k_stride = (args)->k_stride, .v_stride = (args)->v_stride, .o_stride = (args)->o_stride,  \
        .causal = (args)->causal, .scale = (real)(args)->scale                                     \
    }

static int64_t segment_keys(const int32_t *borders, int64_t segment)
{
    return borders[segment + 1] - borders[segment];
}

/* Checks that branches directly follow their prefix, and that prefixes have none themselves. Raises
 * *longest to the largest number of keys that a branch sees. */
static status prefixes_check(const int32_t *prefix, const int32_t *borders, int64_t segments,
                             int64_t *longest)
{
    for (int64_t i = 0; i < segments; i++) {
        const int32_t of = prefix[i];
        if (of == -1)
            continue;
        if (of < 0 || of >= i || prefix[of] != -1 || (of != i - 1 && prefix[i - 1] != of))
            return FAIL(ST_BAD_INPUT,
                        "attention: segment %lld has the prefix %d; a prefix is a segment without "
                        "one, directly before its branches",
                        (long long)i, of);
        *longest = max_i64(*longest, segment_keys(borders, of) + segment_keys(borders, i));
    }
    return ST_OK;
}

/* *out_longest is the largest number of keys that a segment's queries see. */
static status attention_check(const attention_shape *a, int64_t *out_longest)
{
    if (a->heads <= 0 || a->kv_heads <= 0 || a->heads % a->kv_heads != 0 || a->head_dim <= 0 ||
        a->tokens > INT_MAX || a->keys > INT_MAX)
        return FAIL(
            ST_BAD_INPUT,
            "attention: there are %lld query heads for %lld key-value heads of width %lld; the "
            "first number must be a multiple of the second",
            (long long)a->heads, (long long)a->kv_heads, (long long)a->head_dim);
    TRY(borders_check(a->place ? "queries" : "tokens", a->cu, a->segments, a->tokens, out_longest));
    if (a->place) {
        TRY(borders_check("keys", a->cu_keys, a->segments, a->keys, out_longest));
        TRY(places_check(a->cu, a->cu_keys, a->segments, a->place));
    }
    return a->prefix ? prefixes_check(a->prefix, a->cu_keys, a->segments, out_longest) : ST_OK;
}

/* The segment's prefix; -1: it has none. */
static int64_t prefix_of(const attention_shape *a, int64_t segment)
{
    return a->prefix ? a->prefix[segment] : -1;
}

/* Query head h in a segment. */
static head_view view_of(const attention_shape *a, int64_t segment, int64_t h)
{
    const int64_t d = a->head_dim, kv = h / (a->heads / a->kv_heads);
    const int64_t first = a->cu[segment], key = a->cu_keys[segment], before = prefix_of(a, segment);
    head_view view = {.q = a->q + first * a->q_stride + h * d,
                      .k = a->k + key * a->k_stride + kv * d,
                      .v = a->v + key * a->v_stride + kv * d,
                      .q_stride = a->q_stride,
                      .k_stride = a->k_stride,
                      .v_stride = a->v_stride,
                      .o_stride = a->o_stride,
                      .lse_stride = a->heads,
                      .n = a->cu[segment + 1] - first,
                      .d = d,
                      .keys = a->cu_keys[segment + 1] - key,
                      .place = a->place ? a->place + first : NULL,
                      .first_key = key,
                      .causal = a->causal,
                      .scale = a->scale};
    if (before >= 0) {
        view.prefix_keys = segment_keys(a->cu_keys, before);
        view.prefix_k = a->k + a->cu_keys[before] * a->k_stride + kv * d;
        view.prefix_v = a->v + a->cu_keys[before] * a->v_stride + kv * d;
    }
    return view;
}

/* Sets `width` columns of the rows [from, to) to 0. */
static void zero_rows(real *x, int64_t from, int64_t to, int64_t stride, int64_t width)
{
    for (int64_t t = from; t < to; t++)
        memset(x + t * stride, 0, (size_t)width * sizeof *x);
}

/* The queries [first, first + rows) of a head, and the columns of their scores: `keys` of them, of
 * which the first prefix_keys belong to the prefix and the others are the segment's own. */
typedef struct query_block {
    int64_t first, rows, keys;
} query_block;

static query_block block_at(const head_view *w, int64_t first)
{
    const int64_t rows = min_i64(BLOCK_Q, w->n - first);
    return (query_block){first, rows, w->prefix_keys + head_keys(w, first + rows - 1)};
}

/* y [rows, keys] = alpha x [rows, d] z^T, for the rows of the block; z are the prefix's rows and
 * then the segment's own, with the same stride. */
static void against_keys(const head_view *w, const query_block *block, real alpha, const real *x,
                         int64_t x_stride, const real *prefix_z, const real *z, int64_t z_stride,
                         real *y)
{
    if (w->prefix_keys > 0)
        blas_gemm(false, true, block->rows, w->prefix_keys, w->d, alpha, x, x_stride, prefix_z,
                  z_stride, 0, y, block->keys);
    blas_gemm(false, true, block->rows, block->keys - w->prefix_keys, w->d, alpha, x, x_stride, z,
              z_stride, 0, y + w->prefix_keys, block->keys);
}

/* y [rows, d] = alpha s [rows, keys] z; z as above. */
static void sum_keys(const head_view *w, const query_block *block, real alpha, const real *s,
                     const real *prefix_z, const real *z, int64_t z_stride, real *y,
                     int64_t y_stride)
{
    if (w->prefix_keys > 0)
        blas_gemm(false, false, block->rows, w->d, w->prefix_keys, alpha, s, block->keys, prefix_z,
                  z_stride, 0, y, y_stride);
    blas_gemm(false, false, block->rows, w->d, block->keys - w->prefix_keys, alpha,
              s + w->prefix_keys, block->keys, z, z_stride, w->prefix_keys > 0, y, y_stride);
}

/* z [keys, d] += alpha s^T x [rows, d]; z as above. */
static void add_to_keys(const head_view *w, const query_block *block, real alpha, const real *s,
                        const real *x, int64_t x_stride, real *prefix_z, real *z, int64_t z_stride)
{
    if (w->prefix_keys > 0)
        blas_gemm(true, false, w->prefix_keys, w->d, block->rows, alpha, s, block->keys, x,
                  x_stride, 1, prefix_z, z_stride);
    blas_gemm(true, false, block->keys - w->prefix_keys, w->d, block->rows, alpha,
              s + w->prefix_keys, block->keys, x, x_stride, 1, z, z_stride);
}

static void score_block(const head_view *w, const query_block *block, real *s)
{
    against_keys(w, block, w->scale, w->q + block->first * w->q_stride, w->q_stride, w->prefix_k,
                 w->k, w->k_stride, s);
}

/* How many of the block's columns its row r sees; the others are set to 0 by the callers. */
static int64_t row_sees(const head_view *w, const query_block *block, int64_t r)
{
    return w->prefix_keys + head_keys(w, block->first + r);
}

static void head_fwd(const head_view *w, real *o, real *lse, real *s)
{
    for (int64_t first = 0; first < w->n; first += BLOCK_Q) {
        const query_block block = block_at(w, first);
        score_block(w, &block, s);
        for (int64_t r = 0; r < block.rows; r++) {
            real *row = s + r * block.keys;
            int64_t seen = row_sees(w, &block, r);
            lse[(first + r) * w->lse_stride] = HEAD_SOFTMAX_ROW(row, seen);
            memset(row + seen, 0, (size_t)(block.keys - seen) * sizeof *s);
        }
        sum_keys(w, &block, 1, s, w->prefix_v, w->v, w->v_stride, o + first * w->o_stride,
                 w->o_stride);
    }
}

/* The average work of one head, in element operations: d multiply-adds for each of its scores,
 * `products` times. */
static int64_t task_work(const attention_shape *a, int64_t products)
{
    int64_t scores = 0;
    for (int64_t i = 0; i < a->segments; i++) {
        const int64_t n = segment_keys(a->cu, i);
        scores += n * n;
        if (prefix_of(a, i) >= 0)
            scores += n * segment_keys(a->cu, prefix_of(a, i));
    }
    return a->segments > 0 ? scores / a->segments * (a->head_dim * products / 4 + 8) : 0;
}

/* The scratch of one thread, in numbers: enough for the long and the short way of a head. */
static int64_t scratch_of(int64_t long_way)
{
    return long_way > SHORT_SCRATCH ? long_way : SHORT_SCRATCH;
}

/* The arguments of a call, and scratch with one area of `block` numbers per thread. */
typedef struct heads_job {
    const attention_shape *shape;
    const void *args;
    real *scratch;
    int64_t block;
} heads_job;

static void heads_fwd(const void *context, part p)
{
    const heads_job *job = context;
    const attention_fwd_args *a = job->args;
    for (int64_t t = p.begin; t < p.end; t++) {
        const int64_t h = t % a->heads, segment = t / a->heads, first = a->cu[segment];
        const head_view view = view_of(job->shape, segment, h);
        (head_is_short(&view) ? SHORT_HEAD_FWD : head_fwd)(
            &view, (real *)a->o + first * a->o_stride + h * a->head_dim,
            (real *)a->lse + first * a->heads + h, job->scratch + p.thread * job->block);
    }
}

status CPU_OP(attention_fwd)(stream *s, const attention_fwd_args *a)
{
    const attention_shape shape = SHAPE_OF(a);
    int64_t longest;
    TRY(attention_check(&shape, &longest));
    heads_job job = {.shape = &shape, .args = a, .block = scratch_of(BLOCK_Q * longest)};
    void *scratch;
    TRY(cpu_scratch(s, (size_t)(cpu_threads(s) * job.block) * sizeof(real), &scratch));
    job.scratch = scratch;
    int64_t end = a->segments > 0 ? a->cu[a->segments] : 0;
    zero_rows(a->o, end, a->tokens, a->o_stride, a->heads * a->head_dim);
    zero_rows(a->lse, end, a->tokens, a->heads, a->heads);
    cpu_run(s, a->segments * a->heads, task_work(&shape, 2), heads_fwd, &job);
    return ST_OK;
}

/* Adds one query head's part to dk and dv, and writes its dq. scratch holds 2 * BLOCK_Q * keys
 * numbers. */
static void head_bwd(const head_view *w, const head_grads *g, real *scratch)
{
    real *p = scratch, *dp = scratch + BLOCK_Q * (w->prefix_keys + w->keys);
    HEAD_DOTS(w, g);
    for (int64_t first = 0; first < w->n; first += BLOCK_Q) {
        const query_block block = block_at(w, first);
        const real *do_ = g->do_ + first * w->o_stride, *q = w->q + first * w->q_stride;
        score_block(w, &block, p);
        for (int64_t r = 0; r < block.rows; r++) {
            real *row = p + r * block.keys;
            int64_t seen = row_sees(w, &block, r);
            HEAD_PROBABILITY(row, g->lse[(first + r) * w->lse_stride], seen);
            memset(row + seen, 0, (size_t)(block.keys - seen) * sizeof *p);
        }
        add_to_keys(w, &block, 1, p, do_, w->o_stride, g->prefix_dv, g->dv, w->v_stride);
        against_keys(w, &block, 1, do_, w->o_stride, w->prefix_v, w->v, w->v_stride, dp);
        for (int64_t r = 0; r < block.rows; r++) {
            real dot = g->dot[(first + r) * w->lse_stride];
            real *x = dp + r * block.keys;
            const real *y = p + r * block.keys;
#pragma omp simd
            for (int64_t j = 0; j < block.keys; j++)
                x[j] = y[j] * (x[j] - dot);
        }
        sum_keys(w, &block, w->scale, dp, w->prefix_k, w->k, w->k_stride,
                 g->dq + first * w->q_stride, w->q_stride);
        add_to_keys(w, &block, w->scale, dp, q, w->q_stride, g->prefix_dk, g->dk, w->k_stride);
    }
}

/* The backward of one query head of a segment. dk and dv already hold the sums of the earlier
 * heads and segments. */
static void query_head_bwd(const heads_job *job, int64_t segment, int64_t h, real *scratch)
{
    const attention_bwd_args *a = job->args;
    const head_view view = view_of(job->shape, segment, h);
    const int64_t first = a->cu[segment], at_o = first * a->o_stride + h * a->head_dim;
    const int64_t at_lse = first * a->heads + h;
    /* dq, dk and dv lie as q, k and v do. */
    real *dk = (real *)a->dk + (view.k - job->shape->k);
    real *dv = (real *)a->dv + (view.v - job->shape->v);
    const head_grads g = {
        .o = (const real *)a->o + at_o,
        .lse = (const real *)a->lse + at_lse,
        .do_ = (const real *)a->do_ + at_o,
        .dq = (real *)a->dq + (view.q - job->shape->q),
        .dk = dk,
        .dv = dv,
        .prefix_dk = view.prefix_keys > 0 ? dk + (view.prefix_k - view.k) : NULL,
        .prefix_dv = view.prefix_keys > 0 ? dv + (view.prefix_v - view.v) : NULL,
        .dot = (real *)a->work + at_lse,
    };
    (head_is_short(&view) ? SHORT_HEAD_BWD : head_bwd)(&view, &g, scratch);
}

/* A task is a segment without a prefix, with its branches, and a key-value head. */
static void heads_bwd(const void *context, part p)
{
    const heads_job *job = context;
    const attention_shape *shape = job->shape;
    const int64_t group = shape->heads / shape->kv_heads;
    for (int64_t t = p.begin; t < p.end; t++) {
        const int64_t kv = t % shape->kv_heads, root = t / shape->kv_heads;
        if (prefix_of(shape, root) >= 0)
            continue;
        for (int64_t segment = root;
             segment < shape->segments && (segment == root || prefix_of(shape, segment) == root);
             segment++)
            for (int64_t h = kv * group; h < (kv + 1) * group; h++)
                query_head_bwd(job, segment, h, job->scratch + p.thread * job->block);
    }
}

status CPU_OP(attention_bwd)(stream *s, const attention_bwd_args *a)
{
    const attention_shape shape = SHAPE_OF(a);
    int64_t longest;
    TRY(attention_check(&shape, &longest));
    const int64_t d = a->head_dim, group = a->heads / a->kv_heads;
    heads_job job = {.shape = &shape, .args = a, .block = scratch_of(2 * BLOCK_Q * longest)};
    void *scratch;
    TRY(cpu_scratch(s, (size_t)(cpu_threads(s) * job.block) * sizeof(real), &scratch));
    job.scratch = scratch;
    int64_t end = a->segments > 0 ? a->cu[a->segments] : 0;
    zero_rows(a->dq, end, a->tokens, a->q_stride, a->heads * d);
    /* dk and dv are summed into, so they start from zero everywhere. */
    zero_rows(a->dk, 0, shape.keys, a->k_stride, a->kv_heads * d);
    zero_rows(a->dv, 0, shape.keys, a->v_stride, a->kv_heads * d);
    cpu_run(s, a->segments * a->kv_heads, group * task_work(&shape, 5), heads_bwd, &job);
    return ST_OK;
}
