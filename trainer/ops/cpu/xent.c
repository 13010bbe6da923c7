/* xent.c: cross entropy of a chunk of logits, with the gradient in place, on the CPU (loss_ops.h).
 */
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

static void xent_rows(const void *context, part p)
{
    const xent_job *job = context;
    const xent_args *a = job->args;
    const int64_t n = a->vocab;
    const real *weight = a->weight;
    for (int64_t i = p.begin; i < p.end; i++) {
        real *z = (real *)a->logits + i * n, max = row_max(z, n);
        if (a->best)
            a->best[i] = first_at(z, n, max);
        job->nll[i] = 0;
        if (a->label[i] >= 0)
            job->nll[i] = xent_row(z, n, a->label[i], weight ? weight[i] : 1, max, a->backward);
        else if (a->backward)
            memset(z, 0, (size_t)n * sizeof *z);
    }
}

status CPU_OP(xent)(stream *s, const xent_args *a)
{
    if (a->n == 0)
        return ST_OK;
    if (a->vocab <= 0)
        return FAIL(ST_BAD_INPUT, "xent: the vocabulary has %lld words; it must have at least one",
                    (long long)a->vocab);
    for (int64_t i = 0; i < a->n; i++)
        if (a->label[i] >= a->vocab)
            return FAIL(ST_BAD_INPUT, "xent: label %lld is %d, outside the vocabulary of %lld",
                        (long long)i, a->label[i], (long long)a->vocab);
    void *nll = a->nll;
    if (!nll)
        TRY(cpu_scratch(s, (size_t)a->n * sizeof(real), &nll));
    xent_job job = {a, nll};
    cpu_run(s, a->n, 8 * a->vocab, xent_rows, &job);
    const real *weight = a->weight;
    for (int64_t i = 0; i < a->n; i++)
        if (a->label[i] >= 0) {
            double w = weight ? (double)weight[i] : 1;
            *a->loss_sum += w * (double)job.nll[i];
            *a->weight_sum += w;
        }
    return ST_OK;
}
