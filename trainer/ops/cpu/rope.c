/* SPDX-License-Identifier: Apache-2.0 */
/* rope.c: tables of angles and the rotation (rope.h), alone and after the norm of heads
 * (norm.h), on the CPU. */
#include <string.h>

#include "trainer/ops/cpu/norm_row.h"

enum { ANGLE_WORK = 64 /* a cosine and a sine, in element operations */ };

/* The angle is position * frequency, in one multiplication of type real, which is how the published
 * model rounds it. */
static void put_angle(real *cosine, real *sine, int32_t position, real frequency)
{
    real angle = (real)position * frequency;
    *cosine = REAL_COS(angle);
    *sine = REAL_SIN(angle);
}

/* What a table of angles is made from: angle j of row t is place[j][t * step] * omega[j]. */
typedef struct table {
    int64_t half;
    real omega[ROPE_HALF_DIM_MAX];
    const int32_t *place[ROPE_HALF_DIM_MAX]; /* row 0's position on the axis of each angle */
    int64_t step;                            /* distance from one row's position to the next */
    real *cosine, *sine;
} table;

static void table_rows(const void *context, part todo)
{
    const table *base = context;
    for (int64_t i = todo.begin; i < todo.end; i++)
        for (int64_t j = 0; j < base->half; j++)
            put_angle(base->cosine + i * base->half + j, base->sine + i * base->half + j,
                      base->place[j][i * base->step], base->omega[j]);
}

status CPU_OP(rope_text)(stream *queue, const rope_text_args *args)
{
    table base = {.step = 1, .cosine = args->cos, .sine = args->sin};
    TRY(rope_half_dim(args->head_dim, 1, &base.half));
    for (int64_t j = 0; j < base.half; j++) {
        bool own = j % 3 != 0 && j < 3 * args->section[j % 3];
        base.omega[j] = rope_frequency(args->theta, 2 * j, args->head_dim);
        base.place[j] = args->positions + (own ? j % 3 : 0) * args->tokens;
    }
    cpu_run(queue, args->tokens, ANGLE_WORK * base.half, table_rows, &base);
    return ST_OK;
}

status CPU_OP(rope_vision)(stream *queue, const rope_vision_args *args)
{
    table base = {.step = 2, .cosine = args->cos, .sine = args->sin};
    TRY(rope_half_dim(args->head_dim, 2, &base.half));
    int64_t quarter = base.half / 2;
    for (int64_t j = 0; j < base.half; j++) {
        base.omega[j] = rope_frequency(args->theta, 2 * (j % quarter), base.half);
        base.place[j] = args->row_col + (j >= quarter);
    }
    cpu_run(queue, args->patches, ANGLE_WORK * base.half, table_rows, &base);
    return ST_OK;
}

static void rotate_halves(real *low, real *high, const real *cosines, const real *sines,
                          int64_t half, real sign)
{
#pragma omp simd
    for (int64_t j = 0; j < half; j++) {
        real low_value = low[j], high_value = high[j], sine = sign * sines[j];
        low[j] = low_value * cosines[j] - high_value * sine;
        high[j] = high_value * cosines[j] + low_value * sine;
    }
}

static void rotate_rows(const void *context, part todo)
{
    const rope_apply_args *args = context;
    const int64_t half = args->head_dim / 2;
    const real *cosines = args->cos, *sines = args->sin;
    for (int64_t i = todo.begin; i < todo.end; i++)
        for (int64_t head = 0; head < args->heads; head++) {
            real *x = (real *)args->x + i * args->x_stride + head * args->head_dim;
            rotate_halves(x, x + half, cosines + i * half, sines + i * half, half,
                          args->inverse ? -1 : 1);
        }
}

status CPU_OP(rope_apply)(stream *queue, const rope_apply_args *args)
{
    int64_t half;
    TRY(rope_half_dim(args->head_dim, 1, &half));
    cpu_run(queue, args->rows, 2 * args->heads * half, rotate_rows, args);
    return ST_OK;
}

static void norm_rope_rows(const void *context, part todo)
{
    const norm_rope_fwd_args *args = context;
    const int64_t head_dim = args->head_dim, half = head_dim / 2;
    const real *cosines = args->cos, *sines = args->sin;
    for (int64_t i = todo.begin * args->heads; i < todo.end * args->heads; i++) {
        const int64_t angles = i / args->heads * half;
        real *y = (real *)args->y + i * head_dim;
        ((real *)args->rstd)[i] =
            rms_row(y, (const real *)args->x + i * head_dim, args->w, head_dim, (real)args->eps);
        rotate_halves(y, y + half, cosines + angles, sines + angles, half, 1);
    }
}

status CPU_OP(norm_rope_fwd)(stream *queue, const norm_rope_fwd_args *args)
{
    int64_t half;
    TRY(norm_rope_half_dim(args->rows, args->heads, args->head_dim, &half));
    cpu_run(queue, args->rows, args->heads * (4 * half + ROW_WORK), norm_rope_rows, args);
    return ST_OK;
}

/* dy is rotated back into dx, which the norm's backward then reads and overwrites. */
static void norm_rope_bwd_blocks(const void *context, part todo)
{
    const blocks *layout = context;
    const norm_rope_bwd_args *args = layout->args;
    const int64_t head_dim = args->head_dim, half = head_dim / 2, rows = args->rows * args->heads;
    const real *cosines = args->cos, *sines = args->sin, *x = args->x, *rstd = args->rstd,
               *dy = args->dy;
    for (int64_t k = todo.begin; k < todo.end; k++) {
        real *dw = layout->part + k * head_dim;
        memset(dw, 0, (size_t)head_dim * sizeof *dw);
        for (int64_t i = k * layout->rows; i < min_i64((k + 1) * layout->rows, rows); i++) {
            const int64_t angles = i / args->heads * half;
            real *dx = (real *)args->dx + i * head_dim;
            memmove(dx, dy + i * head_dim, (size_t)head_dim * sizeof *dx);
            rotate_halves(dx, dx + half, cosines + angles, sines + angles, half, -1);
            rms_row_bwd(dx, dw, x + i * head_dim, args->w, dx, rstd[i], head_dim, false);
        }
    }
}

status CPU_OP(norm_rope_bwd)(stream *queue, const norm_rope_bwd_args *args)
{
    int64_t half;
    blocks layout;
    TRY(norm_rope_half_dim(args->rows, args->heads, args->head_dim, &half));
    TRY(blocks_make(queue, args->rows * args->heads, args->head_dim, args, &layout));
    cpu_run(queue, layout.n_blocks, layout.rows * (6 * half + ROW_WORK), norm_rope_bwd_blocks,
            &layout);
    add_partials(args->dw, layout.part, layout.n_blocks, args->head_dim, args->head_dim);
    return ST_OK;
}
