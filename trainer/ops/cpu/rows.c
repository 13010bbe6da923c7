/* rows.c: rows by index, and weighted sums of table rows, on the CPU (rows.h).
 *
 * Where several sources meet in one target row, the work is shared out by target: part p owns the
 * targets whose number modulo SHARES is p, and walks over all indices in order. So the order of
 * additions is fixed, without atomics. */
#include <string.h>

#include "trainer/ops/cpu/cpu_ops.h"

enum {
    CORNERS = 4,
    SHARES = 16 /* parts by target; each reads all indices, which costs little next to the rows */
};

static void gather_rows(const void *context, part p)
{
    const rows_gather_args *a = context;
    const int64_t n = a->width;
    for (int64_t i = p.begin; i < p.end; i++) {
        real *y = (real *)a->y + i * n;
        if (a->index[i] >= 0)
            memcpy(y, (const real *)a->x + a->index[i] * n, (size_t)n * sizeof *y);
        else if (!a->keep)
            memset(y, 0, (size_t)n * sizeof *y);
    }
}

status CPU_OP(rows_gather)(stream *s, const rows_gather_args *a)
{
    cpu_run(s, a->n, a->width, gather_rows, a);
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
            return FAIL(ST_BAD_INPUT, "%s: index %lld is %d, but there are only %lld rows", op,
                        (long long)i, index[i], (long long)rows);
    return ST_OK;
}

static void scatter_rows(const void *context, part p)
{
    const rows_scatter_args *a = context;
    const int64_t n = a->width;
    for (int64_t i = p.begin; i < p.end; i++)
        if (a->index[i] >= 0)
            add_row((real *)a->y + a->index[i] * n, (const real *)a->x + i * n, 1, n);
}

static void scatter_shares(const void *context, part p)
{
    const rows_scatter_args *a = context;
    const int64_t n = a->width;
    for (int64_t i = 0; i < a->n; i++) {
        int64_t at = a->index[i], share = at % SHARES;
        if (at >= 0 && share >= p.begin && share < p.end)
            add_row((real *)a->y + at * n, (const real *)a->x + i * n, 1, n);
    }
}

status CPU_OP(rows_scatter)(stream *s, const rows_scatter_args *a)
{
    TRY(check_index("rows_scatter", a->index, a->n, a->y_rows));
    if (a->distinct)
        cpu_run(s, a->n, a->width, scatter_rows, a);
    else
        cpu_run(s, SHARES, a->n * a->width / SHARES, scatter_shares, a);
    return ST_OK;
}

static status check_corners(const char *op, const int32_t *index, int64_t n, int64_t rows)
{
    TRY(check_index(op, index, n * CORNERS, rows));
    for (int64_t i = 0; i < n * CORNERS; i++)
        if (index[i] < 0)
            return FAIL(ST_BAD_INPUT, "%s: index %lld is %d; it must be 0 or more", op,
                        (long long)i, index[i]);
    return ST_OK;
}

static void weighted_rows(const void *context, part p)
{
    const rows_weighted_args *a = context;
    const int64_t n = a->width;
    const real *table = a->table;
    for (int64_t i = p.begin; i < p.end; i++) {
        const int32_t *at = a->index + i * CORNERS;
        const real *w = (const real *)a->weight + i * CORNERS;
        const real *r0 = table + at[0] * n, *r1 = table + at[1] * n;
        const real *r2 = table + at[2] * n, *r3 = table + at[3] * n;
        real *y = (real *)a->y + i * n;
#pragma omp simd
        for (int64_t j = 0; j < n; j++)
            y[j] += w[0] * r0[j] + w[1] * r1[j] + w[2] * r2[j] + w[3] * r3[j];
    }
}

status CPU_OP(rows_weighted)(stream *s, const rows_weighted_args *a)
{
    TRY(check_corners("rows_weighted", a->index, a->n, a->table_rows));
    cpu_run(s, a->n, CORNERS * a->width, weighted_rows, a);
    return ST_OK;
}

static void weighted_shares(const void *context, part p)
{
    const rows_weighted_bwd_args *a = context;
    const int64_t n = a->width;
    const real *weight = a->weight, *dy = a->dy;
    for (int64_t c = 0; c < a->n * CORNERS; c++) {
        int64_t at = a->index[c], share = at % SHARES;
        if (share >= p.begin && share < p.end && weight[c] != 0)
            add_row((real *)a->dtable + at * n, dy + c / CORNERS * n, weight[c], n);
    }
}

status CPU_OP(rows_weighted_bwd)(stream *s, const rows_weighted_bwd_args *a)
{
    TRY(check_corners("rows_weighted_bwd", a->index, a->n, a->table_rows));
    cpu_run(s, SHARES, CORNERS * a->n * a->width / SHARES, weighted_shares, a);
    return ST_OK;
}
