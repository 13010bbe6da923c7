/* dora.c: lengths of adapted rows, and their use forward and backward, on the CPU (dora.h). */
#include "trainer/ops/cpu/cpu_ops.h"

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
