/* SPDX-License-Identifier: Apache-2.0 */
/* norm.c: RMSNorm and LayerNorm on the CPU (norm.h). */
#include <string.h>

#include "trainer/ops/cpu/cpu_ops.h"
#include "trainer/ops/cpu/norm_row.h"

static void rms_fwd_rows(const void *context, part todo)
{
    const rmsnorm_fwd_args *args = context;
    const int64_t n = args->n;
    const real *x = args->x;
    real *y = args->y, *rstd = args->rstd;
    for (int64_t i = todo.begin; i < todo.end; i++)
        rstd[i] = rms_row(y + i * n, x + i * n, args->w, n, (real)args->eps);
}

status CPU_OP(rmsnorm_fwd)(stream *queue, const rmsnorm_fwd_args *args)
{
    cpu_run(queue, args->rows, args->n + ROW_WORK, rms_fwd_rows, args);
    return ST_OK;
}

static void rms_bwd_blocks(const void *context, part todo)
{
    const blocks *layout = context;
    const rmsnorm_bwd_args *args = layout->args;
    const int64_t n = args->n;
    const real *x = args->x, *rstd = args->rstd, *dy = args->dy;
    real *dx = args->dx;
    for (int64_t k = todo.begin; k < todo.end; k++) {
        real *dw = layout->part + k * n;
        memset(dw, 0, (size_t)n * sizeof *dw);
        for (int64_t i = k * layout->rows; i < min_i64((k + 1) * layout->rows, args->rows); i++)
            rms_row_bwd(dx + i * n, dw, x + i * n, args->w, dy + i * n, rstd[i], n,
                        args->dx_accumulate);
    }
}

status CPU_OP(rmsnorm_bwd)(stream *queue, const rmsnorm_bwd_args *args)
{
    blocks layout;
    TRY(blocks_make(queue, args->rows, args->n, args, &layout));
    cpu_run(queue, layout.n_blocks, layout.rows * (2 * args->n + ROW_WORK), rms_bwd_blocks,
            &layout);
    add_partials(args->dw, layout.part, layout.n_blocks, args->n, args->n);
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

static void layer_fwd_rows(const void *context, part todo)
{
    const layernorm_fwd_args *args = context;
    const int64_t n = args->n;
    const real *x = args->x;
    real *y = args->y, *mean = args->mean, *rstd = args->rstd;
    for (int64_t i = todo.begin; i < todo.end; i++)
        layer_row(y + i * n, mean + i, rstd + i, x + i * n, args->w, args->b, n, (real)args->eps);
}

status CPU_OP(layernorm_fwd)(stream *queue, const layernorm_fwd_args *args)
{
    cpu_run(queue, args->rows, 2 * args->n + ROW_WORK, layer_fwd_rows, args);
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

static void layer_bwd_blocks(const void *context, part todo)
{
    const blocks *layout = context;
    const layernorm_bwd_args *args = layout->args;
    const int64_t n = args->n;
    const real *x = args->x, *mean = args->mean, *rstd = args->rstd, *dy = args->dy;
    real *dx = args->dx;
    for (int64_t k = todo.begin; k < todo.end; k++) {
        real *dw = layout->part + k * 2 * n, *db = dw + n;
        memset(dw, 0, (size_t)(2 * n) * sizeof *dw);
        for (int64_t i = k * layout->rows; i < min_i64((k + 1) * layout->rows, args->rows); i++)
            layer_row_bwd(dx + i * n, dw, db, x + i * n, args->w, dy + i * n, mean[i], rstd[i], n,
                          args->dx_accumulate);
    }
}

status CPU_OP(layernorm_bwd)(stream *queue, const layernorm_bwd_args *args)
{
    blocks layout;
    if (args->rows == 0) /* there is then no array of partial sums to point into */
        return ST_OK;
    TRY(blocks_make(queue, args->rows, 2 * args->n, args, &layout));
    cpu_run(queue, layout.n_blocks, layout.rows * (3 * args->n + ROW_WORK), layer_bwd_blocks,
            &layout);
    add_partials(args->dw, layout.part, layout.n_blocks, 2 * args->n, args->n);
    add_partials(args->db, layout.part + args->n, layout.n_blocks, 2 * args->n, args->n);
    return ST_OK;
}

/* ---- DoRA's lengths ---- */

enum { PANEL = 512, COLUMNS = 64 };

/* The squares of columns [first, first + count) of row `number` of W + s B A. */
static double panel_squares(const dora_norm_args *args, int64_t number, int64_t first,
                            int64_t count)
{
    const real *w = (const real *)args->w + number * args->in + first;
    real sum[PANEL];
    double squares = 0;
    for (int64_t i = 0; i < count; i++)
        sum[i] = w[i];
    for (int64_t k = 0; k < args->rank; k++) {
        const real *a = (const real *)args->a + k * args->in + first;
        const real factor = (real)args->scale * ((const real *)args->b)[number * args->rank + k];
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            sum[i] += factor * a[i];
    }
    for (int64_t i = 0; i < count; i++)
        squares += (double)sum[i] * (double)sum[i];
    return squares;
}

static void norm_rows(const void *context, part todo)
{
    const dora_norm_args *args = context;
    for (int64_t j = todo.begin; j < todo.end; j++) {
        double squares = 0;
        for (int64_t i = 0; i < args->in; i += PANEL)
            squares += panel_squares(args, j, i, min_i64(PANEL, args->in - i));
        ((real *)args->norm)[j] = (real)sqrt(squares);
    }
}

status CPU_OP(dora_norm)(stream *queue, const dora_norm_args *args)
{
    cpu_run(queue, args->out, args->in * (args->rank + 1), norm_rows, args);
    return ST_OK;
}

static void fwd_rows(const void *context, part todo)
{
    const dora_fwd_args *args = context;
    const real *m = args->m, *norm = args->norm;
    for (int64_t i = todo.begin; i < todo.end; i++) {
        const real *z = (const real *)args->z + i * args->n;
        const real *from = args->residual ? (const real *)args->residual + i * args->n : NULL;
        real *y = (real *)args->y + i * args->y_stride;
        for (int64_t j = 0; j < args->n; j++)
            y[j] = m[j] / norm[j] * z[j] + (from ? from[j] : 0);
    }
}

status CPU_OP(dora_fwd)(stream *queue, const dora_fwd_args *args)
{
    cpu_run(queue, args->rows, args->n, fwd_rows, args);
    return ST_OK;
}

/* The sums are over the rows in their order,
 * so they do not depend on how columns are shared out. */
static void bwd_columns(const void *context, part todo)
{
    const dora_bwd_args *args = context;
    for (int64_t k = todo.begin; k < todo.end; k++) {
        const int64_t first = k * COLUMNS, width = min_i64(COLUMNS, args->n - first);
        const real *m = (const real *)args->m + first, *norm = (const real *)args->norm + first;
        real *dm = (real *)args->dm + first, sum[COLUMNS] = {0};
        for (int64_t i = 0; i < args->rows; i++) {
            const real *dy = (const real *)args->dy + i * args->dy_stride + first;
            const real *z = (const real *)args->z + i * args->n + first;
            real *dz = (real *)args->dz + i * args->n + first;
            for (int64_t j = 0; j < width; j++) {
                sum[j] += dy[j] * z[j];
                dz[j] = m[j] / norm[j] * dy[j];
            }
        }
        for (int64_t j = 0; j < width; j++)
            dm[j] += sum[j] / norm[j];
    }
}

status CPU_OP(dora_bwd)(stream *queue, const dora_bwd_args *args)
{
    cpu_run(queue, ceil_div(args->n, COLUMNS), args->rows * COLUMNS, bwd_columns, args);
    return ST_OK;
}
