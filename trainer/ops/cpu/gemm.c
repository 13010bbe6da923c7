/* SPDX-License-Identifier: Apache-2.0 */
/* gemm.c: dense and grouped products on the CPU (gemm.h). We cut them into tiles, and OpenBLAS
 * computes each tile in one single-threaded call. The cut depends on the shapes alone, so the bits
 * do not depend on the number of threads. */
#include <limits.h>
#include <string.h>

#include "trainer/ops/cpu/real_blas.h"

enum {
    /* Multiply-adds of a tile, about 40 us: each tile packs its own operands. */
    TILE_WORK = 1 << 21,
    TILE_MIN = 48, /* thinner tiles waste OpenBLAS's packing */
    TILES_MAX = 32,
    GROUP_ROWS = 256, /* rows of one expert in one call */
    MULTIPLY_ADDS = 8 /* multiply-adds that take as long as one element operation of cpu_run */
};

/* Halves the longer side until there are TILES_MAX tiles or the tiles get too small to pay. */
static void gemm_cut(int64_t m, int64_t n, int64_t k, int64_t *tile_m, int64_t *tile_n)
{
    int64_t tm = m, tn = n;
    while (ceil_div(m, tm) * ceil_div(n, tn) < TILES_MAX && tm * tn * k > 2 * TILE_WORK) {
        int64_t *side = tm >= tn ? &tm : &tn;
        if (*side < 2 * TILE_MIN)
            break;
        *side = ceil_div(ceil_div(*side, 2), 16) * 16;
    }
    *tile_m = tm;
    *tile_n = tn;
}

/* Prepares the tile [i0, i1) x [j0, j1) of C before the product adds to it: with the bias, or with
 * zeros. */
static void gemm_begin_tile(const gemm_args *args, int64_t i0, int64_t i1, int64_t j0, int64_t j1)
{
    const real *bias = args->bias;
    for (int64_t i = i0; i < i1; i++) {
        real *c = (real *)args->c + i * args->ldc;
        if (bias && args->accumulate) {
            for (int64_t j = j0; j < j1; j++)
                c[j] += bias[j];
        } else if (bias) {
            memcpy(c + j0, bias + j0, (size_t)(j1 - j0) * sizeof(real));
        } else if (!args->accumulate) {
            memset(c + j0, 0, (size_t)(j1 - j0) * sizeof(real));
        }
    }
}

/* Adds the residual after the product, so that the bits are those of a product followed by an
 * addition. */
static void gemm_add_residual(const gemm_args *args, int64_t i0, int64_t i1, int64_t j0, int64_t j1)
{
    for (int64_t i = i0; i < i1; i++) {
        real *c = (real *)args->c + i * args->ldc;
        const real *x = (const real *)args->residual + i * args->ldc;
#pragma omp simd
        for (int64_t j = j0; j < j1; j++)
            c[j] += x[j];
    }
}

static void gemm_tile(const gemm_args *args, int64_t i0, int64_t i1, int64_t j0, int64_t j1)
{
    if (args->bias || args->k == 0)
        gemm_begin_tile(args, i0, i1, j0, j1);
    if (args->k == 0) {
        if (args->residual)
            gemm_add_residual(args, i0, i1, j0, j1);
        return;
    }
    const real *pa = (const real *)args->a + (args->trans_a ? i0 : i0 * args->lda);
    const real *pb = (const real *)args->b + (args->trans_b ? j0 * args->ldb : j0);
    real *pc = (real *)args->c + i0 * args->ldc + j0;
    blas_gemm(args->trans_a, args->trans_b, i1 - i0, j1 - j0, args->k, (real)args->alpha, pa,
              args->lda, pb, args->ldb, args->accumulate || args->bias ? 1 : 0, pc, args->ldc);
    if (args->residual)
        gemm_add_residual(args, i0, i1, j0, j1);
}

typedef struct gemm_job {
    const gemm_args *args;
    int64_t tm, tn;
} gemm_job;

static void gemm_body(const void *context, part todo)
{
    const gemm_job *job = context;
    const gemm_args *args = job->args;
    int64_t across = ceil_div(args->n, job->tn);
    for (int64_t k = todo.begin; k < todo.end; k++) {
        int64_t i = k / across * job->tm, j = k % across * job->tn;
        gemm_tile(args, i, min_i64(i + job->tm, args->m), j, min_i64(j + job->tn, args->n));
    }
}

status CPU_OP(gemm)(stream *queue, const gemm_args *args)
{
    int64_t a_width = args->trans_a ? args->m : args->k,
            b_width = args->trans_b ? args->k : args->n;
    if (args->m < 0 || args->n < 0 || args->k < 0 || args->m > INT_MAX || args->n > INT_MAX ||
        args->k > INT_MAX || args->lda > INT_MAX || args->ldb > INT_MAX || args->ldc > INT_MAX)
        return FAIL(ST_BAD_INPUT, "gemm: m %lld, n %lld, k %lld and the strides must fit 31 bits",
                    (long long)args->m, (long long)args->n, (long long)args->k);
    if (args->m == 0 || args->n == 0)
        return ST_OK;
    if (args->ldc < args->n || (args->k > 0 && (args->lda < a_width || args->ldb < b_width)))
        return FAIL(
            ST_BAD_INPUT,
            "gemm: the row strides %lld, %lld, %lld are shorter than the rows of %lld, %lld, %lld",
            (long long)args->lda, (long long)args->ldb, (long long)args->ldc, (long long)a_width,
            (long long)b_width, (long long)args->n);
    TRY(gemm_check_residual(args));
    gemm_job job = {.args = args};
    gemm_cut(args->m, args->n, args->k, &job.tm, &job.tn);
    cpu_run(queue, ceil_div(args->m, job.tm) * ceil_div(args->n, job.tn),
            job.tm * job.tn * args->k / MULTIPLY_ADDS, gemm_body, &job);
    return ST_OK;
}

/* Computes the rows [r0, r1) of one expert: the forward product, gated or not, or the gradient of
 * x. */
static void grouped_rows(const grouped_gemm_args *args, int64_t expert, int64_t r0, int64_t r1)
{
    int64_t k = args->k, n = args->n;
    const real *w = (const real *)args->w + expert * k * n;
    real *x = (real *)args->x + r0 * k, *y = (real *)args->y + r0 * n;
    if (args->mode == GROUPED_FWD)
        blas_gemm(false, false, r1 - r0, n, k, 1, x, k, w, n, 0, y, n);
    else
        blas_gemm(false, true, r1 - r0, k, n, 1, y, n, w, n, 0, x, k);
    for (int64_t i = 0; i < r1 - r0 && args->gated; i++)
        swiglu_row((real *)args->gated + (r0 + i) * n / 2, y + i * n, y + i * n + n / 2, n / 2);
}

static void grouped_weight(const grouped_gemm_args *args, int64_t expert)
{
    int64_t k = args->k, n = args->n, r0 = args->offset[expert],
            rows = args->offset[expert + 1] - r0;
    if (rows > 0)
        blas_gemm(true, false, k, n, rows, 1, (const real *)args->x + r0 * k, k,
                  (const real *)args->y + r0 * n, n, 1, (real *)args->dw + expert * k * n, n);
}

static status grouped_check(const grouped_gemm_args *args)
{
    if (args->k <= 0 || args->n <= 0 || args->k > INT_MAX || args->n > INT_MAX)
        return FAIL(
            ST_BAD_INPUT,
            "grouped_gemm: the widths are %lld and %lld; they must be positive and fit 31 bits",
            (long long)args->k, (long long)args->n);
    for (int64_t expert = 0; expert < args->experts; expert++)
        if (args->offset[expert] < 0 || args->offset[expert] > args->offset[expert + 1] ||
            args->offset[expert + 1] > args->rows_cap)
            return FAIL(
                ST_BAD_INPUT,
                "grouped_gemm: expert %lld has the rows [%d, %d), which is not an ascending range "
                "within %lld rows",
                (long long)expert, args->offset[expert], args->offset[expert + 1],
                (long long)args->rows_cap);
    return grouped_gemm_check_gated(args);
}

static void grouped_weight_body(const void *context, part todo)
{
    for (int64_t i = todo.begin; i < todo.end; i++)
        grouped_weight(context, i);
}

/* Task `i` is piece i / experts of expert i % experts. An expert with many rows comes in several
 * pieces, so that the threads share its work evenly. With uneven experts most tasks are empty, and
 * cost nothing. */
static void grouped_rows_body(const void *context, part todo)
{
    const grouped_gemm_args *args = context;
    for (int64_t i = todo.begin; i < todo.end; i++) {
        int64_t expert = i % args->experts,
                row = args->offset[expert] + i / args->experts * GROUP_ROWS;
        if (row < args->offset[expert + 1])
            grouped_rows(args, expert, row, min_i64(row + GROUP_ROWS, args->offset[expert + 1]));
    }
}

status CPU_OP(grouped_gemm)(stream *queue, const grouped_gemm_args *args)
{
    if (args->experts == 0)
        return ST_OK;
    TRY(grouped_check(args));
    int64_t rows = args->offset[args->experts] - args->offset[0];
    if (rows > INT_MAX)
        return FAIL(ST_BAD_INPUT,
                    "grouped_gemm: there are %lld rows; at most 2^31 - 1 are possible",
                    (long long)rows);
    int64_t longest = 0;
    for (int64_t expert = 0; expert < args->experts; expert++)
        if (args->offset[expert + 1] - args->offset[expert] > longest)
            longest = args->offset[expert + 1] - args->offset[expert];
    int64_t tasks =
        args->mode == GROUPED_WGRAD ? args->experts : args->experts * ceil_div(longest, GROUP_ROWS);
    if (tasks > 0)
        cpu_run(queue, tasks, rows * args->k * args->n / MULTIPLY_ADDS / tasks,
                args->mode == GROUPED_WGRAD ? grouped_weight_body : grouped_rows_body, args);
    return ST_OK;
}
