/* SPDX-License-Identifier: Apache-2.0 */
/* gemm.h: dense and grouped matrix products, row-major.
 *
 * gemm computes
 *   C[M, N] = alpha op(A)[M, K] op(B)[K, N] + (accumulate ? C : 0) + residual[M, N] + bias[N]
 * where op(A) is A [M, K], or A [K, M] transposed if trans_a; op(B) is B [K, N], or B [N, K]
 * transposed if trans_b. With the published layout W [out, in], the forward product y = x Wt takes
 * trans_b, dx = dy W takes neither, and dW = dyt x takes trans_a with accumulate. K = 0 is legal
 * and means an empty sum.
 *
 * grouped_gemm multiplies each expert's rows by its own matrix. The rows of x and y are sorted by
 * expert; expert e has the rows [offset[e], offset[e+1]). Rows beyond offset[E] are not touched.
 * The weights W are [E, K, N], as transformers publishes them (modeling_qwen3_vl_moe.py,
 * Qwen3VLMoeTextExperts).
 *   GROUPED_FWD    y[rows_e, N] = x[rows_e, K] W_e
 *   GROUPED_DGRAD  x[rows_e, K] = y[rows_e, N] W_et           x is written
 *   GROUPED_WGRAD  dw[e] [K, N] += x[rows_e, K]t y[rows_e, N]   added to; an expert without rows
 *                  leaves dw[e] as it is */
#ifndef TESSERA_TRAINER_OPS_GEMM_H
#define TESSERA_TRAINER_OPS_GEMM_H

#include <stdbool.h>

#include "trainer/device/backend.h"

/* Arguments of gemm.
 *
 * a, b: act. c: act, or acc if c_acc is set (weight gradients). bias [N]: act, or NULL.
 *
 * residual [M, N]: act, or NULL. It has c's row stride, must not be c, and goes with neither
 * accumulate nor c_acc. On CUDA it is added before the result is rounded to bf16.
 *
 * lda, ldb, ldc: row strides in elements.
 *
 * BAD_INPUT: a size or stride beyond 31 bits, a stride shorter than its row, or a residual where it
 * may not go. On CUDA also a bias with c_acc, and a bias with accumulate or residual at K = 0. */
typedef struct gemm_args {
    int64_t m, n, k;
    bool trans_a, trans_b, accumulate, c_acc;
    double alpha;
    const void *a, *b, *bias, *residual;
    void *c;
    int64_t lda, ldb, ldc;
} gemm_args;

/* BAD_INPUT for a residual where it may not go. Both backends call it, so they answer alike. */
WARN_UNUSED static inline status gemm_check_residual(const gemm_args *args)
{
    if (args->residual && (args->residual == args->c || args->accumulate || args->c_acc))
        return FAIL(ST_BAD_INPUT, "gemm: a residual needs a result of type act that is not the "
                                  "residual and is not accumulated");
    return ST_OK;
}

enum { GROUPED_FWD, GROUPED_DGRAD, GROUPED_WGRAD };

/* `gated` fuses SwiGLU into the forward product: N is 2I, a row of y is [gate | up], and
 * gated[rows, I] = silu(gate) up is written too, from y as it is rounded for memory, so that the
 * bits are those of swiglu_fwd. With y_dropped, y is only a means: it may be left unwritten and its
 * contents are undefined. */
typedef struct grouped_gemm_args {
    int mode;
    int64_t experts, k, n;
    int64_t rows_cap;      /* rows that x and y have room for; offset[E] is at most that */
    const int32_t *offset; /* [E+1] on the device, ascending */
    void *x;               /* [rows_cap, K] act */
    const void *w;         /* [E, K, N] act; unused by WGRAD */
    void *y;               /* [rows_cap, N] act */
    void *dw;              /* [E, K, N] acc, added to; WGRAD only */
    void *gated;           /* [rows_cap, N/2] act; FWD only, else NULL */
    bool y_dropped;
    /* CUDA: the grid is that beside collectives, even if the device was opened without them. Only
     * the time differs. */
    bool beside;
} grouped_gemm_args;

/* BAD_INPUT for `gated` where it may not go. Both backends call it. */
WARN_UNUSED static inline status grouped_gemm_check_gated(const grouped_gemm_args *args)
{
    if (args->gated && (args->mode != GROUPED_FWD || args->n % 2 != 0))
        return FAIL(
            ST_BAD_INPUT,
            "grouped_gemm: a gated product must be the forward one with an even N; mode is %d "
            "and N is %lld",
            args->mode, (long long)args->n);
    return ST_OK;
}

#endif
