/* xent.c: cross entropy of a chunk of logits, its gradient in place (loss_ops.h). */
#include <string.h>

#include "trainer/ops/cpu/cpu.h"

/* Largest of z; NaN if any is (the comparison below would hide it). */
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
    return 0; /* only where z is not a number throughout */
}

/* One supervised row; returns its nll. With backward z becomes w (softmax - onehot). */
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

status CPU_OP(xent)(stream *s, const xent_args *a)
{
    const int64_t n = a->vocab;
    if (a->n == 0)
        return ST_OK;
    if (n <= 0)
        return FAIL(ST_BAD_INPUT, "xent: a vocabulary of %lld", (long long)n);
    for (int64_t i = 0; i < a->n; i++)
        if (a->label[i] >= n)
            return FAIL(ST_BAD_INPUT, "xent: label %lld is %d in a vocabulary of %lld",
                        (long long)i, a->label[i], (long long)n);
    const real *weight = a->weight;
    void *scratch = a->nll;
    if (!scratch)
        TRY(cpu_scratch(s, (size_t)a->n * sizeof(real), &scratch));
    real *logits = a->logits, *nll = scratch;
    int nt = cpu_threads(s, 8 * a->n * n);
#pragma omp parallel for num_threads(nt) schedule(static)
    for (int64_t i = 0; i < a->n; i++) {
        real *z = logits + i * n, w = weight ? weight[i] : 1;
        real max = row_max(z, n);
        if (a->best)
            a->best[i] = first_at(z, n, max);
        nll[i] = 0;
        if (a->label[i] >= 0)
            nll[i] = xent_row(z, n, a->label[i], w, max, a->backward);
        else if (a->backward)
            memset(z, 0, (size_t)n * sizeof *z);
    }
    for (int64_t i = 0; i < a->n; i++)
        if (a->label[i] >= 0) {
            double w = weight ? (double)weight[i] : 1;
            *a->loss_sum += w * (double)nll[i];
            *a->weight_sum += w;
        }
    return ST_OK;
}
