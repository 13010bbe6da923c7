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

static status cached_check(const attention_cached_args *args, int64_t *out_longest)
{
    if (args->heads <= 0 || args->kv_heads <= 0 || args->heads % args->kv_heads != 0 ||
        args->head_dim <= 0)
        return FAIL(
            ST_BAD_INPUT,
            "attention_cached: there are %lld query heads for %lld key-value heads of width "
            "%lld; the first number must be a multiple of the second",
            (long long)args->heads, (long long)args->kv_heads, (long long)args->head_dim);
    *out_longest = 0;
    for (int64_t i = 0; i < args->queries; i++) {
        int64_t first = args->first[i], length = args->length[i];
        if (first < 0 || length < 0 || first + length > args->rows)
            return FAIL(
                ST_BAD_INPUT,
                "attention_cached: query %lld sees the rows [%lld, %lld), but there are %lld",
                (long long)i, (long long)first, (long long)(first + length), (long long)args->rows);
        *out_longest = length > *out_longest ? length : *out_longest;
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

/* Writes o [d] of one query head over k and v [length, d], whose rows are `stride` apart. */
static void query_head(const real *q, const real *k, const real *v, int64_t stride, int64_t length,
                       int64_t d, real scale, real *score, real *o)
{
    for (int64_t j = 0; j < d; j++)
        o[j] = 0;
    if (length == 0)
        return;
    for (int64_t i = 0; i < length; i++)
        score[i] = scale * dot(q, k + i * stride, d);
    HEAD_SOFTMAX_ROW(score, length);
    for (int64_t i = 0; i < length; i++) {
        const real *x = v + i * stride, p = score[i];
#pragma omp simd
        for (int64_t j = 0; j < d; j++)
            o[j] += p * x[j];
    }
}

static void cached_heads(const void *context, part todo)
{
    const cached_job *job = context;
    const attention_cached_args *args = job->args;
    const int64_t head_dim = args->head_dim, group = args->heads / args->kv_heads,
                  stride = args->kv_heads * head_dim;
    for (int64_t j = todo.begin; j < todo.end; j++) {
        int64_t i = j / args->kv_heads, kv = j % args->kv_heads;
        const int64_t at = args->first[i] * stride + kv * head_dim;
        for (int64_t k = kv * group; k < (kv + 1) * group; k++)
            query_head((const real *)args->q + (i * args->heads + k) * head_dim,
                       (const real *)args->k + at, (const real *)args->v + at, stride,
                       args->length[i], head_dim, (real)args->scale,
                       job->scratch + todo.thread * job->longest,
                       (real *)args->o + (i * args->heads + k) * head_dim);
    }
}

status CPU_OP(attention_cached)(stream *queue, const attention_cached_args *args)
{
    cached_job job = {.args = args};
    void *scratch;
    TRY(cached_check(args, &job.longest));
    TRY(cpu_scratch(queue, (size_t)(cpu_threads(queue) * job.longest) * sizeof(real), &scratch));
    job.scratch = scratch;
    cpu_run(queue, args->queries * args->kv_heads,
            2 * args->heads / args->kv_heads * job.longest * args->head_dim, cached_heads, &job);
    return ST_OK;
}
