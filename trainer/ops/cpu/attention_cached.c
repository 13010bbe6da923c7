/* SPDX-License-Identifier: Apache-2.0 */
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

/* The rows that a query sees: those of its document's prefix, then those of the document. */
typedef struct cached_rows {
    int64_t prefix, n_prefix, own, n_own;
} cached_rows;

static cached_rows rows_of_query(const attention_cached_args *args, int64_t query)
{
    cached_rows rows = {.own = args->first[query], .n_own = args->length[query]};
    if (args->prefix_first) {
        rows.prefix = args->prefix_first[query];
        rows.n_prefix = args->prefix_length[query];
    }
    return rows;
}

/* The row of the query's key `index`. */
static int64_t row_of_key(const cached_rows *rows, int64_t index)
{
    return index < rows->n_prefix ? rows->prefix + index : rows->own + index - rows->n_prefix;
}

static status check_range(const attention_cached_args *args, int64_t query, int64_t first,
                          int64_t length)
{
    if (first >= 0 && length >= 0 && first + length <= args->rows)
        return ST_OK;
    return FAIL(
        ST_BAD_INPUT, "attention_cached: query %lld sees the rows [%lld, %lld), but there are %lld",
        (long long)query, (long long)first, (long long)(first + length), (long long)args->rows);
}

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
        const cached_rows rows = rows_of_query(args, i);
        const int64_t length = rows.n_prefix + rows.n_own;
        TRY(check_range(args, i, rows.prefix, rows.n_prefix));
        TRY(check_range(args, i, rows.own, rows.n_own));
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

/* Writes o [d] of one query head over the rows of k and v, which are `stride` apart. */
static void query_head(const real *q, const real *k, const real *v, int64_t stride,
                       const cached_rows *rows, int64_t d, real scale, real *score, real *o)
{
    const int64_t length = rows->n_prefix + rows->n_own;
    for (int64_t j = 0; j < d; j++)
        o[j] = 0;
    if (length == 0)
        return;
    for (int64_t i = 0; i < length; i++)
        score[i] = scale * dot(q, k + row_of_key(rows, i) * stride, d);
    HEAD_SOFTMAX_ROW(score, length);
    for (int64_t i = 0; i < length; i++) {
        const real *x = v + row_of_key(rows, i) * stride, p = score[i];
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
        const int64_t at = kv * head_dim;
        const cached_rows rows = rows_of_query(args, i);
        for (int64_t k = kv * group; k < (kv + 1) * group; k++)
            query_head((const real *)args->q + (i * args->heads + k) * head_dim,
                       (const real *)args->k + at, (const real *)args->v + at, stride, &rows,
                       head_dim, (real)args->scale, job->scratch + todo.thread * job->longest,
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
