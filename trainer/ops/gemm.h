/* gemm.h: dense and grouped matrix products, row-major.
 *
 * gemm:  C[M,N] = alpha * op(A) op(B) + (accumulate ? C : 0) + residual[M,N] + bias[N]
 *   op(A) [M,K]: A is [M,K], or [K,M] if trans_a; op(B) [K,N]: B is [K,N], or [N,K] if trans_b.
 *   So y = x Wt is trans_b with W [out,in]; dx = dy W; dW = dyt x is trans_a, accumulate.
 *   a, b: act. c: act, or acc if c_acc (weight gradients). bias, residual: act or NULL; the
 * residual has C's strides, is not C, and goes with neither accumulate nor c_acc. lda.. are row
 * strides in elements. M, N or K = 0 is legal (K = 0: C is alpha*0 + ...). BAD_INPUT: a size or
 * stride beyond 31 bits, a stride shorter than its row, a residual where it does not go; on CUDA
 * also a bias with c_acc, or with accumulate or a residual at K = 0.
 *
 * grouped_gemm: rows of X are sorted by expert; expert e owns rows [offset[e], offset[e+1]).
 *   GROUPED_FWD    y[rows_e, N] = x[rows_e, K] W_e        W [E, K, N] (published layout P)
 *   GROUPED_DGRAD  x[rows_e, K] = y[rows_e, N] W_et       (x written)
 *   GROUPED_WGRAD  dw[e] [K, N] += x[rows_e, K]t y[rows_e, N]   dw acc; an expert without rows
 *                  leaves dw[e] as it is
 *   offset [E+1] int32 on the device; rows beyond offset[E] are not touched.
 *   gated (FWD, N = 2I; else NULL): also gated[rows, I] = silu(g) u of y = [g | u] as it is rounded
 *   for memory: the bits of swiglu_fwd. y_dropped: y may be left unwritten, and is undefined then.
 * Source: spec sections 4.4 and 6. */
#ifndef TESSERA_TRAINER_OPS_GEMM_H
#define TESSERA_TRAINER_OPS_GEMM_H

#include <stdbool.h>

#include "trainer/device/backend.h"

typedef struct gemm_args {
    int64_t m, n, k;
    bool trans_a, trans_b, accumulate, c_acc;
    double alpha;
    const void *a, *b, *bias, *residual;
    void *c;
    int64_t lda, ldb, ldc;
} gemm_args;

/* As both backends answer. */
WARN_UNUSED static inline status gemm_check_residual(const gemm_args *a)
{
    if (a->residual && (a->residual == a->c || a->accumulate || a->c_acc))
        return FAIL(ST_BAD_INPUT, "gemm: a residual is added to a result of its own in act");
    return ST_OK;
}

enum { GROUPED_FWD, GROUPED_DGRAD, GROUPED_WGRAD };

typedef struct grouped_gemm_args {
    int mode;
    int64_t experts, k, n;
    int64_t rows_cap;      /* capacity of x and y */
    const int32_t *offset; /* [E+1] device */
    void *x;               /* [rows, K] act */
    const void *w;         /* [E, K, N] act; unused by WGRAD */
    void *y;               /* [rows, N] act */
    void *dw;              /* [E, K, N] acc; WGRAD only */
    void *gated;           /* [rows, N/2] act; FWD only */
    bool y_dropped;
} grouped_gemm_args;

/* As both backends answer. */
WARN_UNUSED static inline status grouped_gemm_check_gated(const grouped_gemm_args *a)
{
    if (a->gated && (a->mode != GROUPED_FWD || a->n % 2 != 0))
        return FAIL(ST_BAD_INPUT,
                    "grouped_gemm: gated goes with the forward product and an even "
                    "N, not with mode %d and %lld",
                    a->mode, (long long)a->n);
    return ST_OK;
}

#endif
