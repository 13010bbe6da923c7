/* norm.c: RMSNorm and LayerNorm on the CPU (norm.h). */
#include <string.h>

#include "trainer/ops/cpu/norm_row.h"

static void rms_fwd_rows(const void *context, part p)
{
    const rmsnorm_fwd_args *a = context;
    const int64_t n = a->n;
    const real *x = a->x;
    real *y = a->y, *rstd = a->rstd;
    for (int64_t i = p.begin; i < p.end; i++)
        rstd[i] = rms_row(y + i * n, x + i * n, a->w, n, (real)a->eps);
}

status CPU_OP(rmsnorm_fwd)(stream *s, const rmsnorm_fwd_args *a)
{
    cpu_run(s, a->rows, a->n + ROW_WORK, rms_fwd_rows, a);
    return ST_OK;
}

static void rms_bwd_blocks(const void *context, part p)
{
    const blocks *b = context;
    const rmsnorm_bwd_args *a = b->args;
    const int64_t n = a->n;
    const real *x = a->x, *rstd = a->rstd, *dy = a->dy;
    real *dx = a->dx;
    for (int64_t k = p.begin; k < p.end; k++) {
        real *dw = b->part + k * n;
        memset(dw, 0, (size_t)n * sizeof *dw);
        for (int64_t i = k * b->rows; i < min_i64((k + 1) * b->rows, a->rows); i++)
            rms_row_bwd(dx + i * n, dw, x + i * n, a->w, dy + i * n, rstd[i], n, a->dx_accumulate);
    }
}

status CPU_OP(rmsnorm_bwd)(stream *s, const rmsnorm_bwd_args *a)
{
    blocks b;
    TRY(blocks_make(s, a->rows, a->n, a, &b));
    cpu_run(s, b.n_blocks, b.rows * (2 * a->n + ROW_WORK), rms_bwd_blocks, &b);
    add_partials(a->dw, b.part, b.n_blocks, a->n, a->n);
    return ST_OK;
}

static void layer_row(real *y, real *out_mean, real *out_rstd, const real *x, const real *w,
                      const real *b, int64_t n, real eps)
{
    double sum = 0, square = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; j++)
        sum += x[j];
    const double mu = sum / (double)n;
#pragma omp simd reduction(+ : square)
    for (int64_t j = 0; j < n; j++)
        square += (x[j] - mu) * (x[j] - mu);
    const double r = 1 / sqrt(square / (double)n + eps);
#pragma omp simd
    for (int64_t j = 0; j < n; j++)
        y[j] = (real)(w[j] * ((x[j] - mu) * r) + b[j]);
    *out_mean = (real)mu;
    *out_rstd = (real)r;
}

static void layer_fwd_rows(const void *context, part p)
{
    const layernorm_fwd_args *a = context;
    const int64_t n = a->n;
    const real *x = a->x;
    real *y = a->y, *mean = a->mean, *rstd = a->rstd;
    for (int64_t i = p.begin; i < p.end; i++)
        layer_row(y + i * n, mean + i, rstd + i, x + i * n, a->w, a->b, n, (real)a->eps);
}

status CPU_OP(layernorm_fwd)(stream *s, const layernorm_fwd_args *a)
{
    cpu_run(s, a->rows, 2 * a->n + ROW_WORK, layer_fwd_rows, a);
    return ST_OK;
}

/* dx = r (g - mean g - xhat mean(g xhat)); dw += dy xhat; db += dy. dx may be dy. */
static void layer_row_bwd(real *dx, real *dw, real *db, const real *x, const real *w,
                          const real *dy, real mu, real r, int64_t n, bool accumulate)
{
    double sum = 0, dot = 0;
#pragma omp simd reduction(+ : sum, dot)
    for (int64_t j = 0; j < n; j++) {
        double g = (double)dy[j] * w[j];
        sum += g;
        dot += g * (((double)x[j] - mu) * r);
    }
    sum /= (double)n;
    dot /= (double)n;
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        dw[j] += dy[j] * ((x[j] - mu) * r);
        db[j] += dy[j];
    }
    if (accumulate) {
#pragma omp simd
        for (int64_t j = 0; j < n; j++)
            dx[j] += (real)(r * ((double)dy[j] * w[j] - sum - ((double)x[j] - mu) * r * dot));
    } else {
#pragma omp simd
        for (int64_t j = 0; j < n; j++)
            dx[j] = (real)(r * ((double)dy[j] * w[j] - sum - ((double)x[j] - mu) * r * dot));
    }
}

static void layer_bwd_blocks(const void *context, part p)
{
    const blocks *b = context;
    const layernorm_bwd_args *a = b->args;
    const int64_t n = a->n;
    const real *x = a->x, *mean = a->mean, *rstd = a->rstd, *dy = a->dy;
    real *dx = a->dx;
    for (int64_t k = p.begin; k < p.end; k++) {
        real *dw = b->part + k * 2 * n, *db = dw + n;
        memset(dw, 0, (size_t)(2 * n) * sizeof *dw);
        for (int64_t i = k * b->rows; i < min_i64((k + 1) * b->rows, a->rows); i++)
            layer_row_bwd(dx + i * n, dw, db, x + i * n, a->w, dy + i * n, mean[i], rstd[i], n,
                          a->dx_accumulate);
    }
}

status CPU_OP(layernorm_bwd)(stream *s, const layernorm_bwd_args *a)
{
    blocks b;
    if (a->rows == 0) /* there is then no array of partial sums to point into */
        return ST_OK;
    TRY(blocks_make(s, a->rows, 2 * a->n, a, &b));
    cpu_run(s, b.n_blocks, b.rows * (3 * a->n + ROW_WORK), layer_bwd_blocks, &b);
    add_partials(a->dw, b.part, b.n_blocks, 2 * a->n, a->n);
    add_partials(a->db, b.part + a->n, b.n_blocks, 2 * a->n, a->n);
    return ST_OK;
}
