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
static void gemm_begin_tile(const gemm_args *a, int64_t i0, int64_t i1, int64_t j0, int64_t j1)
{
    const real *bias = a->bias;
    for (int64_t i = i0; i < i1; i++) {
        real *c = (real *)a->c + i * a->ldc;
        if (bias && a->accumulate) {
            for (int64_t j = j0; j < j1; j++)
                c[j] += bias[j];
        } else if (bias) {
            memcpy(c + j0, bias + j0, (size_t)(j1 - j0) * sizeof(real));
        } else if (!a->accumulate) {
            memset(c + j0, 0, (size_t)(j1 - j0) * sizeof(real));
        }
    }
}

/* Adds the residual after the product, so that the bits are those of a product followed by an
 * addition. */
static void gemm_add_residual(const gemm_args *a, int64_t i0, int64_t i1, int64_t j0, int64_t j1)
{
    for (int64_t i = i0; i < i1; i++) {
        real *c = (real *)a->c + i * a->ldc;
        const real *x = (const real *)a->residual + i * a->ldc;
#pragma omp simd
        for (int64_t j = j0; j < j1; j++)
            c[j] += x[j];
    }
}

static void gemm_tile(const gemm_args *a, int64_t i0, int64_t i1, int64_t j0, int64_t j1)
{
    if (a->bias || a->k == 0)
        gemm_begin_tile(a, i0, i1, j0, j1);
    if (a->k == 0) {
        if (a->residual)
            gemm_add_residual(a, i0, i1, j0, j1);
        return;
    }
    const real *pa = (const real *)a->a + (a->trans_a ? i0 : i0 * a->lda);
    const real *pb = (const real *)a->b + (a->trans_b ? j0 * a->ldb : j0);
    real *pc = (real *)a->c + i0 * a->ldc + j0;
    blas_gemm(a->trans_a, a->trans_b, i1 - i0, j1 - j0, a->k, (real)a->alpha, pa, a->lda, pb,
              a->ldb, a->accumulate || a->bias ? 1 : 0, pc, a->ldc);
    if (a->residual)
        gemm_add_residual(a, i0, i1, j0, j1);
}

typedef struct gemm_job {
    const gemm_args *args;
    int64_t tm, tn;
} gemm_job;

static void gemm_body(const void *context, part p)
{
    const gemm_job *job = context;
    const gemm_args *a = job->args;
    int64_t across = ceil_div(a->n, job->tn);
    for (int64_t t = p.begin; t < p.end; t++) {
        int64_t i = t / across * job->tm, j = t % across * job->tn;
        gemm_tile(a, i, min_i64(i + job->tm, a->m), j, min_i64(j + job->tn, a->n));
    }
}

status CPU_OP(gemm)(stream *s, const gemm_args *a)
{
    int64_t a_width = a->trans_a ? a->m : a->k, b_width = a->trans_b ? a->k : a->n;
    if (a->m < 0 || a->n < 0 || a->k < 0 || a->m > INT_MAX || a->n > INT_MAX || a->k > INT_MAX ||
        a->lda > INT_MAX || a->ldb > INT_MAX || a->ldc > INT_MAX)
        return FAIL(ST_BAD_INPUT, "gemm: m %lld, n %lld, k %lld and the strides must fit 31 bits",
                    (long long)a->m, (long long)a->n, (long long)a->k);
    if (a->m == 0 || a->n == 0)
        return ST_OK;
    if (a->ldc < a->n || (a->k > 0 && (a->lda < a_width || a->ldb < b_width)))
        return FAIL(
            ST_BAD_INPUT,
            "gemm: the row strides %lld, %lld, %lld are shorter than the rows of %lld, %lld, %lld",
            (long long)a->lda, (long long)a->ldb, (long long)a->ldc, (long long)a_width,
            (long long)b_width, (long long)a->n);
    TRY(gemm_check_residual(a));
    gemm_job job = {.args = a};
    gemm_cut(a->m, a->n, a->k, &job.tm, &job.tn);
    cpu_run(s, ceil_div(a->m, job.tm) * ceil_div(a->n, job.tn),
            job.tm * job.tn * a->k / MULTIPLY_ADDS, gemm_body, &job);
    return ST_OK;
}

/* Computes the rows [r0, r1) of one expert: the forward product, gated or not, or the gradient of
 * x. */
static void grouped_rows(const grouped_gemm_args *a, int64_t e, int64_t r0, int64_t r1)
{
    int64_t k = a->k, n = a->n;
    const real *w = (const real *)a->w + e * k * n;
    real *x = (real *)a->x + r0 * k, *y = (real *)a->y + r0 * n;
    if (a->mode == GROUPED_FWD)
        blas_gemm(false, false, r1 - r0, n, k, 1, x, k, w, n, 0, y, n);
    else
        blas_gemm(false, true, r1 - r0, k, n, 1, y, n, w, n, 0, x, k);
    for (int64_t i = 0; i < r1 - r0 && a->gated; i++)
        swiglu_row((real *)a->gated + (r0 + i) * n / 2, y + i * n, y + i * n + n / 2, n / 2);
}

static void grouped_weight(const grouped_gemm_args *a, int64_t e)
{
    int64_t k = a->k, n = a->n, r0 = a->offset[e], rows = a->offset[e + 1] - r0;
    if (rows > 0)
        blas_gemm(true, false, k, n, rows, 1, (const real *)a->x + r0 * k, k,
                  (const real *)a->y + r0 * n, n, 1, (real *)a->dw + e * k * n, n);
}

static status grouped_check(const grouped_gemm_args *a)
{
    if (a->k <= 0 || a->n <= 0 || a->k > INT_MAX || a->n > INT_MAX)
        return FAIL(
            ST_BAD_INPUT,
            "grouped_gemm: the widths are %lld and %lld; they must be positive and fit 31 bits",
            (long long)a->k, (long long)a->n);
    for (int64_t e = 0; e < a->experts; e++)
        if (a->offset[e] < 0 || a->offset[e] > a->offset[e + 1] || a->offset[e + 1] > a->rows_cap)
            return FAIL(
                ST_BAD_INPUT,
                "grouped_gemm: expert %lld has the rows [%d, %d), which is not an ascending range "
                "within %lld rows",
                (long long)e, a->offset[e], a->offset[e + 1], (long long)a->rows_cap);
    return grouped_gemm_check_gated(a);
}

static void grouped_weight_body(const void *context, part p)
{
    for (int64_t e = p.begin; e < p.end; e++)
        grouped_weight(context, e);
}

/* Task t is piece t / experts of expert t % experts. An expert with many rows comes in several
 * pieces, so that the threads share its work evenly. With uneven experts most tasks are empty, and
 * cost nothing. */
static void grouped_rows_body(const void *context, part p)
{
    const grouped_gemm_args *a = context;
    for (int64_t t = p.begin; t < p.end; t++) {
        int64_t e = t % a->experts, r = a->offset[e] + t / a->experts * GROUP_ROWS;
        if (r < a->offset[e + 1])
            grouped_rows(a, e, r, min_i64(r + GROUP_ROWS, a->offset[e + 1]));
    }
}

status CPU_OP(grouped_gemm)(stream *s, const grouped_gemm_args *a)
{
    if (a->experts == 0)
        return ST_OK;
    TRY(grouped_check(a));
    int64_t rows = a->offset[a->experts] - a->offset[0];
    if (rows > INT_MAX)
        return FAIL(ST_BAD_INPUT,
                    "grouped_gemm: there are %lld rows; at most 2^31 - 1 are possible",
                    (long long)rows);
    int64_t longest = 0;
    for (int64_t e = 0; e < a->experts; e++)
        if (a->offset[e + 1] - a->offset[e] > longest)
            longest = a->offset[e + 1] - a->offset[e];
    int64_t tasks =
        a->mode == GROUPED_WGRAD ? a->experts : a->experts * ceil_div(longest, GROUP_ROWS);
    if (tasks > 0)
        cpu_run(s, tasks, rows * a->k * a->n / MULTIPLY_ADDS / tasks,
                a->mode == GROUPED_WGRAD ? grouped_weight_body : grouped_rows_body, a);
    return ST_OK;
}
