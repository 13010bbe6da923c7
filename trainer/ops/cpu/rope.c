/* rope.c: tables of angles and the rotation (rope.h), alone and after the norm of heads
 * (norm_rope.h), on the CPU. */
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

static void table_rows(const void *context, part p)
{
    const table *b = context;
    for (int64_t t = p.begin; t < p.end; t++)
        for (int64_t j = 0; j < b->half; j++)
            put_angle(b->cosine + t * b->half + j, b->sine + t * b->half + j,
                      b->place[j][t * b->step], b->omega[j]);
}

status CPU_OP(rope_text)(stream *s, const rope_text_args *a)
{
    table b = {.step = 1, .cosine = a->cos, .sine = a->sin};
    TRY(rope_half_dim(a->head_dim, 1, &b.half));
    for (int64_t j = 0; j < b.half; j++) {
        bool own = j % 3 != 0 && j < 3 * a->section[j % 3];
        b.omega[j] = rope_frequency(a->theta, 2 * j, a->head_dim);
        b.place[j] = a->positions + (own ? j % 3 : 0) * a->tokens;
    }
    cpu_run(s, a->tokens, ANGLE_WORK * b.half, table_rows, &b);
    return ST_OK;
}

status CPU_OP(rope_vision)(stream *s, const rope_vision_args *a)
{
    table b = {.step = 2, .cosine = a->cos, .sine = a->sin};
    TRY(rope_half_dim(a->head_dim, 2, &b.half));
    int64_t quarter = b.half / 2;
    for (int64_t j = 0; j < b.half; j++) {
        b.omega[j] = rope_frequency(a->theta, 2 * (j % quarter), b.half);
        b.place[j] = a->row_col + (j >= quarter);
    }
    cpu_run(s, a->patches, ANGLE_WORK * b.half, table_rows, &b);
    return ST_OK;
}

static void rotate_halves(real *low, real *high, const real *c, const real *n, int64_t half,
                          real sign)
{
#pragma omp simd
    for (int64_t j = 0; j < half; j++) {
        real l = low[j], h = high[j], sine = sign * n[j];
        low[j] = l * c[j] - h * sine;
        high[j] = h * c[j] + l * sine;
    }
}

static void rotate_rows(const void *context, part p)
{
    const rope_apply_args *a = context;
    const int64_t half = a->head_dim / 2;
    const real *c = a->cos, *n = a->sin;
    for (int64_t t = p.begin; t < p.end; t++)
        for (int64_t h = 0; h < a->heads; h++) {
            real *x = (real *)a->x + t * a->x_stride + h * a->head_dim;
            rotate_halves(x, x + half, c + t * half, n + t * half, half, a->inverse ? -1 : 1);
        }
}

status CPU_OP(rope_apply)(stream *s, const rope_apply_args *a)
{
    int64_t half;
    TRY(rope_half_dim(a->head_dim, 1, &half));
    cpu_run(s, a->rows, 2 * a->heads * half, rotate_rows, a);
    return ST_OK;
}

static void norm_rope_rows(const void *context, part p)
{
    const norm_rope_fwd_args *a = context;
    const int64_t d = a->head_dim, half = d / 2;
    const real *c = a->cos, *n = a->sin;
    for (int64_t i = p.begin * a->heads; i < p.end * a->heads; i++) {
        const int64_t angles = i / a->heads * half;
        real *y = (real *)a->y + i * d;
        ((real *)a->rstd)[i] = rms_row(y, (const real *)a->x + i * d, a->w, d, (real)a->eps);
        rotate_halves(y, y + half, c + angles, n + angles, half, 1);
    }
}

status CPU_OP(norm_rope_fwd)(stream *s, const norm_rope_fwd_args *a)
{
    int64_t half;
    TRY(norm_rope_half_dim(a->rows, a->heads, a->head_dim, &half));
    cpu_run(s, a->rows, a->heads * (4 * half + ROW_WORK), norm_rope_rows, a);
    return ST_OK;
}

/* dy is rotated back into dx, which the norm's backward then reads and overwrites. */
static void norm_rope_bwd_blocks(const void *context, part p)
{
    const blocks *b = context;
    const norm_rope_bwd_args *a = b->args;
    const int64_t d = a->head_dim, half = d / 2, rows = a->rows * a->heads;
    const real *c = a->cos, *n = a->sin, *x = a->x, *rstd = a->rstd, *dy = a->dy;
    for (int64_t k = p.begin; k < p.end; k++) {
        real *dw = b->part + k * d;
        memset(dw, 0, (size_t)d * sizeof *dw);
        for (int64_t i = k * b->rows; i < min_i64((k + 1) * b->rows, rows); i++) {
            const int64_t angles = i / a->heads * half;
            real *dx = (real *)a->dx + i * d;
            memmove(dx, dy + i * d, (size_t)d * sizeof *dx);
            rotate_halves(dx, dx + half, c + angles, n + angles, half, -1);
            rms_row_bwd(dx, dw, x + i * d, a->w, dx, rstd[i], d, false);
        }
    }
}

status CPU_OP(norm_rope_bwd)(stream *s, const norm_rope_bwd_args *a)
{
    int64_t half;
    blocks b;
    TRY(norm_rope_half_dim(a->rows, a->heads, a->head_dim, &half));
    TRY(blocks_make(s, a->rows * a->heads, a->head_dim, a, &b));
    cpu_run(s, b.n_blocks, b.rows * (6 * half + ROW_WORK), norm_rope_bwd_blocks, &b);
    add_partials(a->dw, b.part, b.n_blocks, a->head_dim, a->head_dim);
    return ST_OK;
}
