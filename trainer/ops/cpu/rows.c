/* rows.c: rows by index, and weighted sums of table rows (rows.h).
 * Where several sources meet in one target row, each thread owns the targets whose number leaves
 * its own remainder and walks all indices in order: fixed order, no atomics. */
#include <string.h>

#include "trainer/ops/cpu/cpu.h"

enum { CORNERS = 4 };

status CPU_OP(rows_gather)(stream *s, const rows_gather_args *a)
{
    const int64_t n = a->width;
    int nt = cpu_threads(s, a->n * n);
#pragma omp parallel for num_threads(nt) schedule(static)
    for (int64_t i = 0; i < a->n; i++) {
        real *y = (real *)a->y + i * n;
        if (a->index[i] >= 0)
            memcpy(y, (const real *)a->x + a->index[i] * n, (size_t)n * sizeof *y);
        else if (!a->keep)
            memset(y, 0, (size_t)n * sizeof *y);
    }
    return ST_OK;
}

/* y += w x */
static void add_row(real *y, const real *x, real w, int64_t n)
{
#pragma omp simd
    for (int64_t j = 0; j < n; j++)
        y[j] += w * x[j];
}

static status check_index(const char *op, const int32_t *index, int64_t n, int64_t rows)
{
    for (int64_t i = 0; i < n; i++)
        if (index[i] >= rows)
            return FAIL(ST_BAD_INPUT, "%s: index %lld is %d, beyond %lld rows", op, (long long)i,
                        index[i], (long long)rows);
    return ST_OK;
}

status CPU_OP(rows_scatter)(stream *s, const rows_scatter_args *a)
{
    TRY(check_index("rows_scatter", a->index, a->n, a->y_rows));
    const int64_t n = a->width;
    int nt = cpu_threads(s, a->n * n);
    if (a->distinct) {
#pragma omp parallel for num_threads(nt) schedule(static)
        for (int64_t i = 0; i < a->n; i++)
            if (a->index[i] >= 0)
                add_row((real *)a->y + a->index[i] * n, (const real *)a->x + i * n, 1, n);
        return ST_OK;
    }
#pragma omp parallel for num_threads(nt) schedule(static)
    for (int part = 0; part < nt; part++)
        for (int64_t i = 0; i < a->n; i++)
            if (a->index[i] >= 0 && a->index[i] % nt == part)
                add_row((real *)a->y + a->index[i] * n, (const real *)a->x + i * n, 1, n);
    return ST_OK;
}

static status check_corners(const char *op, const int32_t *index, int64_t n, int64_t rows)
{
    TRY(check_index(op, index, n * CORNERS, rows));
    for (int64_t i = 0; i < n * CORNERS; i++)
        if (index[i] < 0)
            return FAIL(ST_BAD_INPUT, "%s: index %lld is %d", op, (long long)i, index[i]);
    return ST_OK;
}

status CPU_OP(rows_weighted)(stream *s, const rows_weighted_args *a)
{
    TRY(check_corners("rows_weighted", a->index, a->n, a->table_rows));
    const int64_t n = a->width;
    const real *weight = a->weight, *table = a->table;
    real *y = a->y;
    int nt = cpu_threads(s, CORNERS * a->n * n);
#pragma omp parallel for num_threads(nt) schedule(static)
    for (int64_t i = 0; i < a->n; i++) {
        const int32_t *at = a->index + i * CORNERS;
        const real *w = weight + i * CORNERS;
        const real *r0 = table + at[0] * n, *r1 = table + at[1] * n;
        const real *r2 = table + at[2] * n, *r3 = table + at[3] * n;
#pragma omp simd
        for (int64_t j = 0; j < n; j++)
            y[i * n + j] += w[0] * r0[j] + w[1] * r1[j] + w[2] * r2[j] + w[3] * r3[j];
    }
    return ST_OK;
}

status CPU_OP(rows_weighted_bwd)(stream *s, const rows_weighted_bwd_args *a)
{
    TRY(check_corners("rows_weighted_bwd", a->index, a->n, a->table_rows));
    const int64_t n = a->width;
    const real *weight = a->weight, *dy = a->dy;
    int nt = cpu_threads(s, CORNERS * a->n * n);
#pragma omp parallel for num_threads(nt) schedule(static)
    for (int part = 0; part < nt; part++)
        for (int64_t c = 0; c < a->n * CORNERS; c++)
            if (a->index[c] % nt == part && weight[c] != 0)
                add_row((real *)a->dtable + a->index[c] * n, dy + c / CORNERS * n, weight[c], n);
    return ST_OK;
}
