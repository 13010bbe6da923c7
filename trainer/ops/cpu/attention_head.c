/* SPDX-License-Identifier: Apache-2.0 */
/* attention_head.c: row operations that the long and the short way of a head share
 * (attention_head.h). */
#include "trainer/ops/cpu/attention_head.h"

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

void HEAD_DOTS(const head_view *view, const head_grads *grads)
{
    for (int64_t i = 0; i < view->n; i++) {
        const real *x = grads->o + i * view->o_stride, *y = grads->do_ + i * view->o_stride;
        real sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < view->d; j++)
            sum += x[j] * y[j];
        grads->dot[i * view->lse_stride] = sum;
    }
}

void HEAD_PROBABILITY(real *p, real lse, int64_t n)
{
#pragma omp simd
    for (int64_t j = 0; j < n; j++)
        p[j] = real_exp(p[j] - lse);
}
