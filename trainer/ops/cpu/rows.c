/* SPDX-License-Identifier: Apache-2.0 */
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

static void gather_rows(const void *context, part todo)
{
    const rows_gather_args *args = context;
    const int64_t width = args->width;
    for (int64_t i = todo.begin; i < todo.end; i++) {
        real *y = (real *)args->y + i * width;
        if (args->index[i] >= 0)
            memcpy(y, (const real *)args->x + args->index[i] * width, (size_t)width * sizeof *y);
        else if (!args->keep)
            memset(y, 0, (size_t)width * sizeof *y);
    }
}

status CPU_OP(rows_gather)(stream *queue, const rows_gather_args *args)
{
    cpu_run(queue, args->n, args->width, gather_rows, args);
    return ST_OK;
}

/* y += w x */
static void add_row(real *y, const real *x, real w, int64_t shape)
{
#pragma omp simd
    for (int64_t j = 0; j < shape; j++)
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

static void scatter_rows(const void *context, part todo)
{
    const rows_scatter_args *args = context;
    const int64_t width = args->width;
    for (int64_t i = todo.begin; i < todo.end; i++)
        if (args->index[i] >= 0)
            add_row((real *)args->y + args->index[i] * width, (const real *)args->x + i * width, 1,
                    width);
}

static void scatter_shares(const void *context, part todo)
{
    const rows_scatter_args *args = context;
    const int64_t width = args->width;
    for (int64_t i = 0; i < args->n; i++) {
        int64_t at = args->index[i], share = at % SHARES;
        if (at >= 0 && share >= todo.begin && share < todo.end)
            add_row((real *)args->y + at * width, (const real *)args->x + i * width, 1, width);
    }
}

status CPU_OP(rows_scatter)(stream *queue, const rows_scatter_args *args)
{
    TRY(check_index("rows_scatter", args->index, args->n, args->y_rows));
    if (args->distinct)
        cpu_run(queue, args->n, args->width, scatter_rows, args);
    else
        cpu_run(queue, SHARES, args->n * args->width / SHARES, scatter_shares, args);
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

static void weighted_rows(const void *context, part todo)
{
    const rows_weighted_args *args = context;
    const int64_t width = args->width;
    const real *table = args->table;
    for (int64_t i = todo.begin; i < todo.end; i++) {
        const int32_t *at = args->index + i * CORNERS;
        const real *w = (const real *)args->weight + i * CORNERS;
        const real *r0 = table + at[0] * width, *r1 = table + at[1] * width;
        const real *r2 = table + at[2] * width, *r3 = table + at[3] * width;
        real *y = (real *)args->y + i * width;
#pragma omp simd
        for (int64_t j = 0; j < width; j++)
            y[j] += w[0] * r0[j] + w[1] * r1[j] + w[2] * r2[j] + w[3] * r3[j];
    }
}

status CPU_OP(rows_weighted)(stream *queue, const rows_weighted_args *args)
{
    TRY(check_corners("rows_weighted", args->index, args->n, args->table_rows));
    cpu_run(queue, args->n, CORNERS * args->width, weighted_rows, args);
    return ST_OK;
}

static void weighted_shares(const void *context, part todo)
{
    const rows_weighted_bwd_args *args = context;
    const int64_t width = args->width;
    const real *weight = args->weight, *dy = args->dy;
    for (int64_t i = 0; i < args->n * CORNERS; i++) {
        int64_t at = args->index[i], share = at % SHARES;
        if (share >= todo.begin && share < todo.end && weight[i] != 0)
            add_row((real *)args->dtable + at * width, dy + i / CORNERS * width, weight[i], width);
    }
}

status CPU_OP(rows_weighted_bwd)(stream *queue, const rows_weighted_bwd_args *args)
{
    TRY(check_corners("rows_weighted_bwd", args->index, args->n, args->table_rows));
    cpu_run(queue, SHARES, CORNERS * args->n * args->width / SHARES, weighted_shares, args);
    return ST_OK;
}

/* ---- weights in codes ---- */

/* The two values of each byte of an nf4 block, as shares of the scale. */
static void fill_pairs(float pair[256][2])
{
    for (int i = 0; i < 256; i++) {
        pair[i][0] = weight_level(i >> 4);
        pair[i][1] = weight_level(i & (WEIGHT_LEVELS - 1));
    }
}

static void expand_block(weight_form form, float pair[256][2], const uint8_t *block, int64_t count,
                         real *y)
{
    const uint8_t *codes = block + WEIGHT_SCALE;
    float scale;
    memcpy(&scale, block, WEIGHT_SCALE);
    if (form == WEIGHT_INT8) {
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            y[i] = (real)((float)(int8_t)codes[i] * scale);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        y[i] = (real)(pair[codes[i / 2]][i % 2] * scale);
}

static void expand_rows(const void *context, part todo)
{
    const dequantise_args *args = context;
    const int64_t wide = weight_row_blocks(args->n), size = weight_block_bytes(args->form);
    float pair[256][2];
    fill_pairs(pair);
    for (int64_t i = todo.begin; i < todo.end; i++)
        for (int64_t j = 0; j < wide; j++)
            expand_block(args->form, pair, (const uint8_t *)args->blocks + (i * wide + j) * size,
                         min_i64(WEIGHT_BLOCK, args->n - j * WEIGHT_BLOCK),
                         (real *)args->y + i * args->n + j * WEIGHT_BLOCK);
}

status CPU_OP(dequantise)(stream *queue, const dequantise_args *args)
{
    cpu_run(queue, args->rows, args->n, expand_rows, args);
    return ST_OK;
}
