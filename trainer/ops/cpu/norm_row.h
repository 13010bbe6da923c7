/* SPDX-License-Identifier: Apache-2.0 */
/* norm_row.h: what the norms share: RMSNorm of one row, and sums over rows. Rows are independent.
 * The sums for dw and db go through one partial sum per block of rows, which are added in the order
 * of the blocks. */
#ifndef TESSERA_TRAINER_OPS_CPU_NORM_ROW_H
#define TESSERA_TRAINER_OPS_CPU_NORM_ROW_H

#include "trainer/ops/cpu/cpu_ops.h"

enum {
    BLOCKS_MAX = 64,
    BLOCK_ROWS_MIN = 32,
    ROW_WORK = 64 /* a row's square root and divisions, in element operations */
};

/* A backward pass: its arguments, and its rows cut into blocks that have a partial sum each. */
typedef struct blocks {
    const void *args;
    int64_t n_blocks, rows; /* rows: those of one block */
    real *part;
} blocks;

/* Cuts `rows` into at most BLOCKS_MAX blocks and takes scratch for a partial sum of `width` numbers
 * each. */
static inline status blocks_make(stream *queue, int64_t rows, int64_t width, const void *args,
                                 blocks *out)
{
    int64_t each = ceil_div(rows, BLOCKS_MAX);
    each = each < BLOCK_ROWS_MIN ? BLOCK_ROWS_MIN : each;
    *out = (blocks){.args = args, .n_blocks = ceil_div(rows, each), .rows = each};
    void *scratch;
    TRY(cpu_scratch(queue, (size_t)(out->n_blocks * width) * sizeof(real), &scratch));
    out->part = scratch;
    return ST_OK;
}

/* out[j] += sum over blocks of partial[block * stride + j], in block order. */
static inline void add_partials(real *out, const real *partial, int64_t n_blocks, int64_t stride,
                                int64_t head_dim)
{
    for (int64_t block = 0; block < n_blocks; block++)
        for (int64_t j = 0; j < head_dim; j++)
            out[j] += partial[block * stride + j];
}

static inline real rms_row(real *y, const real *x, const real *w, int64_t n, real eps)
{
    double square = 0;
#pragma omp simd reduction(+ : square)
    for (int64_t j = 0; j < n; j++)
        square += (double)x[j] * x[j];
    const real r = (real)(1 / sqrt(square / (double)n + eps));
#pragma omp simd
    for (int64_t j = 0; j < n; j++)
        y[j] = w[j] * (x[j] * r);
    return r;
}

/* dx = r (g - xhat mean(g xhat)), g = dy w, xhat = r x; dw += dy xhat. dx may be dy. */
static inline void rms_row_bwd(real *dx, real *dw, const real *x, const real *w, const real *dy,
                               real r, int64_t n, bool accumulate)
{
    double dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t j = 0; j < n; j++)
        dot += (double)dy[j] * w[j] * x[j];
    const real common = (real)(dot * r * r * r / (double)n);
#pragma omp simd
    for (int64_t j = 0; j < n; j++)
        dw[j] += dy[j] * x[j] * r;
    if (accumulate) {
#pragma omp simd
        for (int64_t j = 0; j < n; j++)
            dx[j] += r * dy[j] * w[j] - common * x[j];
    } else {
#pragma omp simd
        for (int64_t j = 0; j < n; j++)
            dx[j] = r * dy[j] * w[j] - common * x[j];
    }
}

#endif
