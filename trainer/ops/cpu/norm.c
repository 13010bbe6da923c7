/* norm.c: RMSNorm and LayerNorm (norm.h). Rows are independent; the sums over rows for dw and db
 * go through one partial sum per block of rows, added in block order. */
#include <string.h>

#include "trainer/ops/cpu/cpu.h"

enum { BLOCKS_MAX = 64, BLOCK_ROWS_MIN = 32 };

static int64_t block_rows_of(int64_t rows)
{
    int64_t n = ceil_div(rows, BLOCKS_MAX);
    return n < BLOCK_ROWS_MIN ? BLOCK_ROWS_MIN : n;
}

/* out[j] += sum over blocks of part[block * stride + j], in block order. */
static void add_partials(real *out, const real *part, int64_t blocks, int64_t stride, int64_t n)
{
    for (int64_t b = 0; b < blocks; b++)
        for (int64_t j = 0; j < n; j++)
            out[j] += part[b * stride + j];
}

static real rms_row(real *y, const real *x, const real *w, int64_t n, real eps)
{
    real square = 0;
#pragma omp simd reduction(+ : square)
    for (int64_t j = 0; j < n; j++)
        square += x[j] * x[j];
    real r = 1 / REAL_SQRT(square / (real)n + eps);
#pragma omp simd
    for (int64_t j = 0; j < n; j++)
        y[j] = w[j] * (x[j] * r);
    return r;
}

status CPU_OP(rmsnorm_fwd)(stream *s, const rmsnorm_fwd_args *a)
{
    const int64_t n = a->n;
    const real *x = a->x, *w = a->w;
    real *y = a->y, *rstd = a->rstd;
    int nt = cpu_threads(s, a->rows * n);
#pragma omp parallel for num_threads(nt) schedule(static)
    for (int64_t i = 0; i < a->rows; i++)
        rstd[i] = rms_row(y + i * n, x + i * n, w, n, (real)a->eps);
    return ST_OK;
}

/* dx = r (g - xhat mean(g xhat)), g = dy w, xhat = r x; dw += dy xhat. dx may be dy. */
static void rms_row_bwd(real *dx, real *dw, const real *x, const real *w, const real *dy, real r,
                        int64_t n, bool accumulate)
{
    real dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t j = 0; j < n; j++)
        dot += dy[j] * w[j] * x[j];
    real c = dot * r * r * r / (real)n;
#pragma omp simd
    for (int64_t j = 0; j < n; j++)
        dw[j] += dy[j] * x[j] * r;
    if (accumulate) {
#pragma omp simd
        for (int64_t j = 0; j < n; j++)
            dx[j] += r * dy[j] * w[j] - c * x[j];
    } else {
#pragma omp simd
        for (int64_t j = 0; j < n; j++)
            dx[j] = r * dy[j] * w[j] - c * x[j];
    }
}

status CPU_OP(rmsnorm_bwd)(stream *s, const rmsnorm_bwd_args *a)
{
    const int64_t n = a->n, rows = a->rows, block = block_rows_of(rows);
    const int64_t blocks = ceil_div(rows, block);
    void *scratch;
    TRY(cpu_scratch(s, (size_t)(blocks * n) * sizeof(real), &scratch));
    real *part = scratch, *dx = a->dx;
    const real *x = a->x, *w = a->w, *rstd = a->rstd, *dy = a->dy;
    int nt = cpu_threads(s, 2 * rows * n);
#pragma omp parallel for num_threads(nt) schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
        real *dw = part + b * n;
        memset(dw, 0, (size_t)n * sizeof *dw);
        for (int64_t i = b * block; i < min_i64((b + 1) * block, rows); i++)
            rms_row_bwd(dx + i * n, dw, x + i * n, w, dy + i * n, rstd[i], n, a->dx_accumulate);
    }
    add_partials(a->dw, part, blocks, n, n);
    return ST_OK;
}

static void layer_row(real *y, real *out_mean, real *out_rstd, const real *x, const real *w,
                      const real *b, int64_t n, real eps)
{
    real sum = 0, square = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; j++)
        sum += x[j];
    real mu = sum / (real)n;
#pragma omp simd reduction(+ : square)
    for (int64_t j = 0; j < n; j++)
        square += (x[j] - mu) * (x[j] - mu);
    real r = 1 / REAL_SQRT(square / (real)n + eps);
#pragma omp simd
    for (int64_t j = 0; j < n; j++)
        y[j] = w[j] * ((x[j] - mu) * r) + b[j];
    *out_mean = mu;
    *out_rstd = r;
}

status CPU_OP(layernorm_fwd)(stream *s, const layernorm_fwd_args *a)
{
    const int64_t n = a->n;
    const real *x = a->x;
    real *y = a->y, *mean = a->mean, *rstd = a->rstd;
    int nt = cpu_threads(s, 2 * a->rows * n);
#pragma omp parallel for num_threads(nt) schedule(static)
    for (int64_t i = 0; i < a->rows; i++)
        layer_row(y + i * n, mean + i, rstd + i, x + i * n, a->w, a->b, n, (real)a->eps);
    return ST_OK;
}

/* dx = r (g - mean g - xhat mean(g xhat)); dw += dy xhat; db += dy. dx may be dy. */
static void layer_row_bwd(real *dx, real *dw, real *db, const real *x, const real *w,
                          const real *dy, real mu, real r, int64_t n, bool accumulate)
{
    real sum = 0, dot = 0;
#pragma omp simd reduction(+ : sum, dot)
    for (int64_t j = 0; j < n; j++) {
        real g = dy[j] * w[j];
        sum += g;
        dot += g * ((x[j] - mu) * r);
    }
    sum /= (real)n;
    dot /= (real)n;
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        dw[j] += dy[j] * ((x[j] - mu) * r);
        db[j] += dy[j];
    }
    if (accumulate) {
#pragma omp simd
        for (int64_t j = 0; j < n; j++)
            dx[j] += r * (dy[j] * w[j] - sum - (x[j] - mu) * r * dot);
    } else {
#pragma omp simd
        for (int64_t j = 0; j < n; j++)
            dx[j] = r * (dy[j] * w[j] - sum - (x[j] - mu) * r * dot);
    }
}

status CPU_OP(layernorm_bwd)(stream *s, const layernorm_bwd_args *a)
{
    const int64_t n = a->n, rows = a->rows, block = block_rows_of(rows);
    const int64_t blocks = ceil_div(rows, block);
    void *scratch;
    TRY(cpu_scratch(s, (size_t)(blocks * 2 * n) * sizeof(real), &scratch));
    real *part = scratch, *dx = a->dx;
    const real *x = a->x, *w = a->w, *mean = a->mean, *rstd = a->rstd, *dy = a->dy;
    int nt = cpu_threads(s, 3 * rows * n);
#pragma omp parallel for num_threads(nt) schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
        real *dw = part + b * 2 * n, *db = dw + n;
        memset(dw, 0, (size_t)(2 * n) * sizeof *dw);
        for (int64_t i = b * block; i < min_i64((b + 1) * block, rows); i++)
            layer_row_bwd(dx + i * n, dw, db, x + i * n, w, dy + i * n, mean[i], rstd[i], n,
                          a->dx_accumulate);
    }
    add_partials(a->dw, part, blocks, 2 * n, n);
    add_partials(a->db, part + n, blocks, 2 * n, n);
    return ST_OK;
}
