/* attention.c: softmax attention inside segments on the CPU (attention.h).
 *
 * A block of BLOCK_Q queries meets all of its keys at once. Only the scores [BLOCK_Q, keys] of one
 * block are held, so memory grows with a segment's length and not with its square. A forward task
 * is a (segment, query head). A backward task is a (segment, key-value head) that sums its query
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
    int64_t tokens, heads, kv_heads, d, segments, keys;
    const int32_t *cu, *cu_keys, *place;
} attention_shape;

/* *out_longest is the largest number of keys in a segment. */
static status attention_check(const attention_shape *a, int64_t *out_longest)
{
    if (a->heads <= 0 || a->kv_heads <= 0 || a->heads % a->kv_heads != 0 || a->d <= 0 ||
        a->tokens > INT_MAX || a->keys > INT_MAX)
        return FAIL(
            ST_BAD_INPUT,
            "attention: there are %lld query heads for %lld key-value heads of width %lld; the "
            "first number must be a multiple of the second",
            (long long)a->heads, (long long)a->kv_heads, (long long)a->d);
    TRY(borders_check(a->cu_keys ? "queries" : "tokens", a->cu, a->segments, a->tokens,
                      out_longest));
    if (!a->cu_keys)
        return ST_OK;
    TRY(borders_check("keys", a->cu_keys, a->segments, a->keys, out_longest));
    return places_check(a->cu, a->cu_keys, a->segments, a->place);
}

/* Sets `width` columns of the rows [from, to) to 0. */
static void zero_rows(real *x, int64_t from, int64_t to, int64_t stride, int64_t width)
{
    for (int64_t t = from; t < to; t++)
        memset(x + t * stride, 0, (size_t)width * sizeof *x);
}

/* s [rows, keys] = scale q k^T for queries [i0, i0 + rows) and keys [0, keys). */
static void score_block(const head_view *w, real *s, int64_t i0, int64_t rows, int64_t keys)
{
    blas_gemm(false, true, rows, keys, w->d, w->scale, w->q + i0 * w->q_stride, w->q_stride, w->k,
              w->k_stride, 0, s, keys);
}

static void head_fwd(const head_view *w, real *o, real *lse, real *s)
{
    for (int64_t i0 = 0; i0 < w->n; i0 += BLOCK_Q) {
        int64_t rows = min_i64(BLOCK_Q, w->n - i0), keys = head_keys(w, i0 + rows - 1);
        score_block(w, s, i0, rows, keys);
        for (int64_t r = 0; r < rows; r++) {
            int64_t seen = head_keys(w, i0 + r);
            lse[(i0 + r) * w->lse_stride] = HEAD_SOFTMAX_ROW(s + r * keys, seen);
            memset(s + r * keys + seen, 0, (size_t)(keys - seen) * sizeof *s);
        }
        blas_gemm(false, false, rows, w->d, keys, 1, s, keys, w->v, w->v_stride, 0,
                  o + i0 * w->o_stride, w->o_stride);
    }
}

/* The average work of one head, in element operations: d multiply-adds for each of its scores,
 * `products` times. */
static int64_t task_work(const int32_t *cu, int64_t segments, int64_t d, int64_t products)
{
    int64_t scores = 0;
    for (int64_t i = 0; i < segments; i++)
        scores += (int64_t)(cu[i + 1] - cu[i]) * (cu[i + 1] - cu[i]);
    return segments > 0 ? scores / segments * (d * products / 4 + 8) : 0;
}

/* The scratch of one thread, in numbers: enough for the long and the short way of a head. */
static int64_t scratch_of(int64_t long_way)
{
    return long_way > SHORT_SCRATCH ? long_way : SHORT_SCRATCH;
}

/* The arguments of a call, and scratch with one area of `block` numbers per thread. */
typedef struct heads_job {
    const void *args;
    real *scratch;
    int64_t block;
} heads_job;

static void heads_fwd(const void *context, part p)
{
    const heads_job *job = context;
    const attention_fwd_args *a = job->args;
    const int64_t d = a->head_dim, group = a->heads / a->kv_heads;
    for (int64_t t = p.begin; t < p.end; t++) {
        int64_t h = t % a->heads, segment = t / a->heads, first = a->cu[segment];
        const int32_t *cu_keys = a->cu_keys ? a->cu_keys : a->cu;
        int64_t key = cu_keys[segment];
        head_view w = {.q = (const real *)a->q + first * a->q_stride + h * d,
                       .k = (const real *)a->k + key * a->k_stride + h / group * d,
                       .v = (const real *)a->v + key * a->v_stride + h / group * d,
                       .q_stride = a->q_stride,
                       .k_stride = a->k_stride,
                       .v_stride = a->v_stride,
                       .o_stride = a->o_stride,
                       .lse_stride = a->heads,
                       .n = a->cu[segment + 1] - first,
                       .d = d,
                       .keys = cu_keys[segment + 1] - key,
                       .place = a->cu_keys ? a->place + first : NULL,
                       .first_key = key,
                       .causal = a->causal,
                       .scale = (real)a->scale};
        (head_is_short(&w) ? SHORT_HEAD_FWD : head_fwd)(
            &w, (real *)a->o + first * a->o_stride + h * d, (real *)a->lse + first * a->heads + h,
            job->scratch + p.thread * job->block);
    }
}

status CPU_OP(attention_fwd)(stream *s, const attention_fwd_args *a)
{
    int64_t longest;
    TRY(attention_check(&(attention_shape){a->tokens, a->heads, a->kv_heads, a->head_dim,
                                           a->segments, a->keys, a->cu, a->cu_keys, a->place},
                        &longest));
    heads_job job = {.args = a, .block = scratch_of(BLOCK_Q * longest)};
    void *scratch;
    TRY(cpu_scratch(s, (size_t)(cpu_threads(s) * job.block) * sizeof(real), &scratch));
    job.scratch = scratch;
    int64_t end = a->segments > 0 ? a->cu[a->segments] : 0;
    zero_rows(a->o, end, a->tokens, a->o_stride, a->heads * a->head_dim);
    zero_rows(a->lse, end, a->tokens, a->heads, a->heads);
    cpu_run(s, a->segments * a->heads, task_work(a->cu, a->segments, a->head_dim, 2), heads_fwd,
            &job);
    return ST_OK;
}

/* Adds one query head's part to dk and dv, and writes its dq. scratch holds 2 * BLOCK_Q * keys
 * numbers. */
static void head_bwd(const head_view *w, const head_grads *g, real *scratch)
{
    real *p = scratch, *dp = scratch + BLOCK_Q * w->keys;
    HEAD_DOTS(w, g);
    for (int64_t i0 = 0; i0 < w->n; i0 += BLOCK_Q) {
        int64_t rows = min_i64(BLOCK_Q, w->n - i0), keys = head_keys(w, i0 + rows - 1);
        const real *do_ = g->do_ + i0 * w->o_stride;
        score_block(w, p, i0, rows, keys);
        for (int64_t r = 0; r < rows; r++) {
            int64_t seen = head_keys(w, i0 + r);
            HEAD_PROBABILITY(p + r * keys, g->lse[(i0 + r) * w->lse_stride], seen);
            memset(p + r * keys + seen, 0, (size_t)(keys - seen) * sizeof *p);
        }
        blas_gemm(true, false, keys, w->d, rows, 1, p, keys, do_, w->o_stride, 1, g->dv,
                  w->v_stride);
        blas_gemm(false, true, rows, keys, w->d, 1, do_, w->o_stride, w->v, w->v_stride, 0, dp,
                  keys);
        for (int64_t r = 0; r < rows; r++) {
            real dot = g->dot[(i0 + r) * w->lse_stride];
            real *x = dp + r * keys;
            const real *y = p + r * keys;
#pragma omp simd
            for (int64_t j = 0; j < keys; j++)
                x[j] = y[j] * (x[j] - dot);
        }
        blas_gemm(false, false, rows, w->d, keys, w->scale, dp, keys, w->k, w->k_stride, 0,
                  g->dq + i0 * w->q_stride, w->q_stride);
        blas_gemm(true, false, keys, w->d, rows, w->scale, dp, keys, w->q + i0 * w->q_stride,
                  w->q_stride, 1, g->dk, w->k_stride);
    }
}

/* The backward of one query head of a segment. dk and dv already hold the sums of the earlier
 * heads. */
static void query_head_bwd(const attention_bwd_args *a, int64_t segment, int64_t h, real *scratch)
{
    const int32_t *cu_keys = a->cu_keys ? a->cu_keys : a->cu;
    const int64_t d = a->head_dim, kv = h / (a->heads / a->kv_heads);
    const int64_t first = a->cu[segment], key = cu_keys[segment];
    const int64_t at_q = first * a->q_stride + h * d, at_k = key * a->k_stride + kv * d;
    const int64_t at_v = key * a->v_stride + kv * d, at_o = first * a->o_stride + h * d;
    const int64_t at_lse = first * a->heads + h;
    head_view w = {.q = (const real *)a->q + at_q,
                   .k = (const real *)a->k + at_k,
                   .v = (const real *)a->v + at_v,
                   .q_stride = a->q_stride,
                   .k_stride = a->k_stride,
                   .v_stride = a->v_stride,
                   .o_stride = a->o_stride,
                   .lse_stride = a->heads,
                   .n = a->cu[segment + 1] - first,
                   .d = d,
                   .keys = cu_keys[segment + 1] - key,
                   .place = a->cu_keys ? a->place + first : NULL,
                   .first_key = key,
                   .causal = a->causal,
                   .scale = (real)a->scale};
    head_grads g = {.o = (const real *)a->o + at_o,
                    .lse = (const real *)a->lse + at_lse,
                    .do_ = (const real *)a->do_ + at_o,
                    .dq = (real *)a->dq + at_q,
                    .dk = (real *)a->dk + at_k,
                    .dv = (real *)a->dv + at_v,
                    .dot = (real *)a->work + at_lse};
    (head_is_short(&w) ? SHORT_HEAD_BWD : head_bwd)(&w, &g, scratch);
}

static void heads_bwd(const void *context, part p)
{
    const heads_job *job = context;
    const attention_bwd_args *a = job->args;
    const int64_t group = a->heads / a->kv_heads;
    for (int64_t t = p.begin; t < p.end; t++) {
        int64_t kv = t % a->kv_heads;
        for (int64_t h = kv * group; h < (kv + 1) * group; h++)
            query_head_bwd(a, t / a->kv_heads, h, job->scratch + p.thread * job->block);
    }
}

status CPU_OP(attention_bwd)(stream *s, const attention_bwd_args *a)
{
    int64_t longest;
    TRY(attention_check(&(attention_shape){a->tokens, a->heads, a->kv_heads, a->head_dim,
                                           a->segments, a->keys, a->cu, a->cu_keys, a->place},
                        &longest));
    const int64_t d = a->head_dim, group = a->heads / a->kv_heads;
    heads_job job = {.args = a, .block = scratch_of(2 * BLOCK_Q * longest)};
    void *scratch;
    TRY(cpu_scratch(s, (size_t)(cpu_threads(s) * job.block) * sizeof(real), &scratch));
    job.scratch = scratch;
    int64_t end = a->segments > 0 ? a->cu[a->segments] : 0;
    zero_rows(a->dq, end, a->tokens, a->q_stride, a->heads * d);
    /* dk and dv are summed into, so they start from zero everywhere. */
    const int64_t keys = a->cu_keys ? a->keys : a->tokens;
    zero_rows(a->dk, 0, keys, a->k_stride, a->kv_heads * d);
    zero_rows(a->dv, 0, keys, a->v_stride, a->kv_heads * d);
    cpu_run(s, a->segments * a->kv_heads, group * task_work(a->cu, a->segments, d, 5), heads_bwd,
            &job);
    return ST_OK;
}
