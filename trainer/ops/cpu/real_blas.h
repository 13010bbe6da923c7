/* SPDX-License-Identifier: Apache-2.0 */
/* real_blas.h: OpenBLAS's matrix product for the type `real`, row-major, on one thread. */
#ifndef TESSERA_TRAINER_OPS_CPU_REAL_BLAS_H
#define TESSERA_TRAINER_OPS_CPU_REAL_BLAS_H

#include "trainer/device/blas.h"
#include "trainer/ops/cpu/cpu_ops.h"

/* C = alpha op(A) op(B) + beta C. a is [m, k], or [k, m] if ta; b is [k, n], or [n, k] if tb; c is
 * [m, n]. Row strides are in elements. m, n and k are above 0 and, like the strides, below 2^31,
 * which the op has checked. */
static inline void blas_gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, real alpha,
                             const real *a, int64_t lda, const real *b, int64_t ldb, real beta,
                             real *c, int64_t ldc)
{
    CBLAS_TRANSPOSE op_a = ta ? CblasTrans : CblasNoTrans, op_b = tb ? CblasTrans : CblasNoTrans;
#ifdef TESSERA_REAL_F64
    blas_api()->dgemm(CblasRowMajor, op_a, op_b, (int)m, (int)n, (int)k, alpha, a, (int)lda, b,
                      (int)ldb, beta, c, (int)ldc);
#else
    blas_api()->sgemm(CblasRowMajor, op_a, op_b, (int)m, (int)n, (int)k, alpha, a, (int)lda, b,
                      (int)ldb, beta, c, (int)ldc);
#endif
}

#endif
