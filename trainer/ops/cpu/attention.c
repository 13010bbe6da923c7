/* attention.c: softmax attention inside segments (attention.h).
 *
 * A block of BLOCK_Q queries meets all its keys at once: the scores [BLOCK_Q, keys] of one block
 * are all that is held, so memory grows with a segment's length and not with its square. Forward
 * tasks are (segment, query head); backward tasks are (segment, kv head), each summing its own
 * query heads in order, so nothing is added from two threads. */
#include <limits.h>
#include <string.h>

#include "trainer/ops/cpu/attention_head.h"
#include "trainer/ops/cpu/blas.h"

enum { BLOCK_Q = 64 };

static status attention_check(int64_t tokens, int64_t heads, int64_t kv_heads, int64_t d,
                              int64_t segments, const int32_t *cu, int64_t *out_longest)
{
    if (heads <= 0 || kv_heads <= 0 || heads % kv_heads != 0 || d <= 0 || tokens > INT_MAX)
        return FAIL(ST_BAD_INPUT,
                    "attention: %lld query heads over %lld kv heads of %lld; the first must be a "
                    "multiple of the second",
                    (long long)heads, (long long)kv_heads, (long long)d);
    int64_t longest = 0;
    if (segments > 0 && cu[0] != 0)
        return FAIL(ST_BAD_INPUT, "attention: the first segment starts at %d, not at 0", cu[0]);
    for (int64_t i = 0; i < segments; i++) {
        if (cu[i + 1] < cu[i] || cu[i + 1] > tokens)
            return FAIL(ST_BAD_INPUT, "attention: segment %lld is [%d, %d) in %lld tokens",
                        (long long)i, cu[i], cu[i + 1], (long long)tokens);
        if (cu[i + 1] - cu[i] > longest)
            longest = cu[i + 1] - cu[i];
    }
    *out_longest = longest;
    return ST_OK;
}

/* heads x d columns of rows [from, to) become 0. */
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

real HEAD_SOFTMAX_ROW(real *s, int64_t n)
{
    real max = s[0], sum = 0;
#pragma omp simd reduction(max : max)
    for (int64_t j = 0; j < n; j++)
        max = s[j] > max ? s[j] : max;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; j++) {
        s[j] = real_exp(s[j] - max);
        sum += s[j];
    }
    real scale = 1 / sum;
#pragma omp simd
    for (int64_t j = 0; j < n; j++)
        s[j] *= scale;
    return max + REAL_LOG(sum);
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

/* Average work of one of `tasks` heads, in element operations: its scores, d multiply-adds each. */
static int64_t task_work(const int32_t *cu, int64_t segments, int64_t d, int64_t products)
{
    int64_t scores = 0;
    for (int64_t i = 0; i < segments; i++)
        scores += (int64_t)(cu[i + 1] - cu[i]) * (cu[i + 1] - cu[i]);
    return segments > 0 ? scores / segments * (d * products / 4 + 8) : 0;
}

/* Numbers of scratch per thread: enough for both ways. */
static int64_t scratch_of(int64_t long_way)
{
    return long_way > SHORT_SCRATCH ? long_way : SHORT_SCRATCH;
}

/* A call's arguments and one scratch area of `block` numbers per thread. */
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
        int64_t h = t % a->heads, first = a->cu[t / a->heads];
        head_view w = {.q = (const real *)a->q + first * a->q_stride + h * d,
                       .k = (const real *)a->k + first * a->k_stride + h / group * d,
                       .v = (const real *)a->v + first * a->v_stride + h / group * d,
                       .q_stride = a->q_stride,
                       .k_stride = a->k_stride,
                       .v_stride = a->v_stride,
                       .o_stride = a->o_stride,
                       .lse_stride = a->heads,
                       .n = a->cu[t / a->heads + 1] - first,
                       .d = d,
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
    TRY(attention_check(a->tokens, a->heads, a->kv_heads, a->head_dim, a->segments, a->cu,
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

void HEAD_DOTS(const head_view *w, const head_grads *g)
{
    for (int64_t i = 0; i < w->n; i++) {
        const real *x = g->o + i * w->o_stride, *y = g->do_ + i * w->o_stride;
        real sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < w->d; j++)
            sum += x[j] * y[j];
        g->dot[i * w->lse_stride] = sum;
    }
}

void HEAD_PROBABILITY(real *p, real lse, int64_t n)
{
#pragma omp simd
    for (int64_t j = 0; j < n; j++)
        p[j] = real_exp(p[j] - lse);
}

/* Adds one query head's part to dk, dv and writes its dq. scratch: 2 * BLOCK_Q * n. */
static void head_bwd(const head_view *w, const head_grads *g, real *scratch)
{
    real *p = scratch, *dp = scratch + BLOCK_Q * w->n;
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

/* One query head of a segment starting at `first`; dk and dv already hold the earlier heads'. */
static void query_head_bwd(const attention_bwd_args *a, int64_t first, int64_t n, int64_t h,
                           real *scratch)
{
    const int64_t d = a->head_dim, kv = h / (a->heads / a->kv_heads);
    const int64_t at_q = first * a->q_stride + h * d, at_k = first * a->k_stride + kv * d;
    const int64_t at_v = first * a->v_stride + kv * d, at_o = first * a->o_stride + h * d;
    const int64_t at_lse = first * a->heads + h;
    head_view w = {.q = (const real *)a->q + at_q,
                   .k = (const real *)a->k + at_k,
                   .v = (const real *)a->v + at_v,
                   .q_stride = a->q_stride,
                   .k_stride = a->k_stride,
                   .v_stride = a->v_stride,
                   .o_stride = a->o_stride,
                   .lse_stride = a->heads,
                   .n = n,
                   .d = d,
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
        int64_t kv = t % a->kv_heads, first = a->cu[t / a->kv_heads];
        for (int64_t h = kv * group; h < (kv + 1) * group; h++)
            query_head_bwd(a, first, a->cu[t / a->kv_heads + 1] - first, h,
                           job->scratch + p.thread * job->block);
    }
}

status CPU_OP(attention_bwd)(stream *s, const attention_bwd_args *a)
{
    int64_t longest;
    TRY(attention_check(a->tokens, a->heads, a->kv_heads, a->head_dim, a->segments, a->cu,
                        &longest));
    const int64_t d = a->head_dim, group = a->heads / a->kv_heads;
    heads_job job = {.args = a, .block = scratch_of(2 * BLOCK_Q * longest)};
    void *scratch;
    TRY(cpu_scratch(s, (size_t)(cpu_threads(s) * job.block) * sizeof(real), &scratch));
    job.scratch = scratch;
    int64_t end = a->segments > 0 ? a->cu[a->segments] : 0;
    zero_rows(a->dq, end, a->tokens, a->q_stride, a->heads * d);
    /* dk and dv are summed into, so they start from zero everywhere. */
    zero_rows(a->dk, 0, a->tokens, a->k_stride, a->kv_heads * d);
    zero_rows(a->dv, 0, a->tokens, a->v_stride, a->kv_heads * d);
    cpu_run(s, a->segments * a->kv_heads, group * task_work(a->cu, a->segments, d, 5), heads_bwd,
            &job);
    return ST_OK;
}
