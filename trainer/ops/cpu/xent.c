/* SPDX-License-Identifier: Apache-2.0 */
/* xent.c: cross entropy of a chunk of logits, with the gradient in place,
 * on the CPU (loss_ops.h). */
#include <string.h>

#include "trainer/ops/cpu/cpu_ops.h"

/* The largest of z. A NaN after z[0] is passed over here, but it reaches the sum of exponentials
 * and so the loss. */
static real row_max(const real *z, int64_t n)
{
    real max = z[0];
#pragma omp simd reduction(max : max)
    for (int64_t j = 0; j < n; j++)
        max = z[j] > max ? z[j] : max;
    return max;
}

static int32_t first_at(const real *z, int64_t n, real value)
{
    for (int64_t j = 0; j < n; j++)
        if (z[j] == value)
            return (int32_t)j;
    return 0; /* reached only where z[0] is NaN */
}

/* One row with a label; returns its negative log-likelihood. With `backward`, z becomes w (softmax
 * - onehot). */
static real xent_row(real *z, int64_t n, int32_t label, real w, real max, bool backward)
{
    real sum = 0, target = z[label];
    if (!backward) {
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < n; j++)
            sum += real_exp(z[j] - max);
        return max + REAL_LOG(sum) - target;
    }
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; j++) {
        z[j] = real_exp(z[j] - max);
        sum += z[j];
    }
    real scale = w / sum;
#pragma omp simd
    for (int64_t j = 0; j < n; j++)
        z[j] *= scale;
    z[label] -= w;
    return max + REAL_LOG(sum) - target;
}

typedef struct xent_job {
    const xent_args *args;
    real *nll;
} xent_job;

static void xent_rows(const void *context, part todo)
{
    const xent_job *job = context;
    const xent_args *args = job->args;
    const int64_t vocab = args->vocab;
    const real *weight = args->weight;
    for (int64_t i = todo.begin; i < todo.end; i++) {
        real *z = (real *)args->logits + i * vocab, max = row_max(z, vocab);
        if (args->best)
            args->best[i] = first_at(z, vocab, max);
        job->nll[i] = 0;
        if (args->label[i] >= 0)
            job->nll[i] =
                xent_row(z, vocab, args->label[i], weight ? weight[i] : 1, max, args->backward);
        else if (args->backward)
            memset(z, 0, (size_t)vocab * sizeof *z);
    }
}

status CPU_OP(xent)(stream *queue, const xent_args *args)
{
    if (args->n == 0)
        return ST_OK;
    if (args->vocab <= 0)
        return FAIL(ST_BAD_INPUT, "xent: the vocabulary has %lld words; it must have at least one",
                    (long long)args->vocab);
    for (int64_t i = 0; i < args->n; i++)
        if (args->label[i] >= args->vocab)
            return FAIL(ST_BAD_INPUT, "xent: label %lld is %d, outside the vocabulary of %lld",
                        (long long)i, args->label[i], (long long)args->vocab);
    void *nll = args->nll;
    if (!nll)
        TRY(cpu_scratch(queue, (size_t)args->n * sizeof(real), &nll));
    xent_job job = {args, nll};
    cpu_run(queue, args->n, 8 * args->vocab, xent_rows, &job);
    const real *weight = args->weight;
    for (int64_t i = 0; i < args->n; i++)
        if (args->label[i] >= 0) {
            double w = weight ? (double)weight[i] : 1;
            *args->loss_sum += w * (double)job.nll[i];
            *args->weight_sum += w;
        }
    return ST_OK;
}
