/* attention_cached.c: one query of each document over its cached keys and values, on the CPU
 * (attention.h).
 *
 * A task is a (query, key-value head), so that keys and values are read once for all query heads
 * that share them. Each of their numbers is used once per query head, so memory is the limit and
 * BLAS would not help. */
#include "trainer/ops/cpu/attention_head.h"

typedef struct cached_job {
    const attention_cached_args *args;
    real *scratch; /* [threads, longest] scores */
    int64_t longest;
} cached_job;

static status cached_check(const attention_cached_args *a, int64_t *out_longest)
{
    if (a->heads <= 0 || a->kv_heads <= 0 || a->heads % a->kv_heads != 0 || a->head_dim <= 0)
        return FAIL(
            ST_BAD_INPUT,
            "attention_cached: there are %lld query heads for %lld key-value heads of width "
            "%lld; the first number must be a multiple of the second",
            (long long)a->heads, (long long)a->kv_heads, (long long)a->head_dim);
    *out_longest = 0;
    for (int64_t i = 0; i < a->queries; i++) {
        int64_t first = a->first[i], n = a->length[i];
        if (first < 0 || n < 0 || first + n > a->rows)
            return FAIL(
                ST_BAD_INPUT,
                "attention_cached: query %lld sees the rows [%lld, %lld), but there are %lld",
                (long long)i, (long long)first, (long long)(first + n), (long long)a->rows);
        *out_longest = n > *out_longest ? n : *out_longest;
    }
    return ST_OK;
}

static real dot(const real *x, const real *y, int64_t n)
{
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; j++)
        sum += x[j] * y[j];
    return sum;
}

/* Writes o [d] of one query head over k and v [n, d], whose rows are `stride` apart. */
static void query_head(const real *q, const real *k, const real *v, int64_t stride, int64_t n,
                       int64_t d, real scale, real *score, real *o)
{
    for (int64_t j = 0; j < d; j++)
        o[j] = 0;
    if (n == 0)
        return;
    for (int64_t i = 0; i < n; i++)
        score[i] = scale * dot(q, k + i * stride, d);
    HEAD_SOFTMAX_ROW(score, n);
    for (int64_t i = 0; i < n; i++) {
        const real *x = v + i * stride, p = score[i];
#pragma omp simd
        for (int64_t j = 0; j < d; j++)
            o[j] += p * x[j];
    }
}

static void cached_heads(const void *context, part p)
{
    const cached_job *job = context;
    const attention_cached_args *a = job->args;
    const int64_t d = a->head_dim, group = a->heads / a->kv_heads, stride = a->kv_heads * d;
    for (int64_t t = p.begin; t < p.end; t++) {
        int64_t i = t / a->kv_heads, kv = t % a->kv_heads;
        const int64_t at = a->first[i] * stride + kv * d;
        for (int64_t h = kv * group; h < (kv + 1) * group; h++)
            query_head((const real *)a->q + (i * a->heads + h) * d, (const real *)a->k + at,
                       (const real *)a->v + at, stride, a->length[i], d, (real)a->scale,
                       job->scratch + p.thread * job->longest,
                       (real *)a->o + (i * a->heads + h) * d);
    }
}

status CPU_OP(attention_cached)(stream *s, const attention_cached_args *a)
{
    cached_job job = {.args = a};
    void *scratch;
    TRY(cached_check(a, &job.longest));
    TRY(cpu_scratch(s, (size_t)(cpu_threads(s) * job.longest) * sizeof(real), &scratch));
    job.scratch = scratch;
    cpu_run(s, a->queries * a->kv_heads, 2 * a->heads / a->kv_heads * job.longest * a->head_dim,
            cached_heads, &job);
    return ST_OK;
}
