/* rope.c: angle tables and the rotation (rope.h). */
#include "trainer/ops/cpu/cpu.h"

enum { HALF_DIM_MAX = 512 };

static status half_dim(int64_t head_dim, int64_t parts, int64_t *out_half)
{
    if (head_dim <= 0 || head_dim % (2 * parts) != 0 || head_dim / 2 > HALF_DIM_MAX)
        return FAIL(ST_BAD_INPUT, "rope: head_dim %lld must be a multiple of %lld up to %d",
                    (long long)head_dim, (long long)(2 * parts), 2 * HALF_DIM_MAX);
    *out_half = head_dim / 2;
    return ST_OK;
}

/* Angle = position * frequency, one multiplication in real: the published model's rounding. */
static void put_angle(real *cosine, real *sine, int32_t position, real frequency)
{
    real angle = (real)position * frequency;
    *cosine = REAL_COS(angle);
    *sine = REAL_SIN(angle);
}

status CPU_OP(rope_text)(stream *s, const rope_text_args *a)
{
    int64_t half;
    TRY(half_dim(a->head_dim, 1, &half));
    real omega[HALF_DIM_MAX];
    int axis[HALF_DIM_MAX];
    for (int64_t j = 0; j < half; j++) {
        omega[j] = (real)pow(a->theta, -2.0 * (double)j / (double)a->head_dim);
        axis[j] = 0;
        for (int x = 1; x < 3; x++)
            if (j % 3 == x && j < 3 * a->section[x])
                axis[j] = x;
    }
    real *c = a->cos, *n = a->sin;
    int nt = cpu_threads(s, 32 * a->tokens * half);
#pragma omp parallel for num_threads(nt) schedule(static)
    for (int64_t t = 0; t < a->tokens; t++)
        for (int64_t j = 0; j < half; j++)
            put_angle(c + t * half + j, n + t * half + j, a->positions[axis[j] * a->tokens + t],
                      omega[j]);
    return ST_OK;
}

status CPU_OP(rope_vision)(stream *s, const rope_vision_args *a)
{
    int64_t half;
    TRY(half_dim(a->head_dim, 2, &half));
    int64_t quarter = half / 2;
    real omega[HALF_DIM_MAX];
    for (int64_t k = 0; k < quarter; k++)
        omega[k] = (real)pow(a->theta, -2.0 * (double)k / (double)half);
    real *c = a->cos, *n = a->sin;
    int nt = cpu_threads(s, 32 * a->patches * half);
#pragma omp parallel for num_threads(nt) schedule(static)
    for (int64_t t = 0; t < a->patches; t++)
        for (int64_t j = 0; j < half; j++)
            put_angle(c + t * half + j, n + t * half + j, a->row_col[2 * t + (j >= quarter)],
                      omega[j < quarter ? j : j - quarter]);
    return ST_OK;
}

static void rotate(real *low, real *high, const real *c, const real *n, int64_t half, real sign)
{
#pragma omp simd
    for (int64_t j = 0; j < half; j++) {
        real l = low[j], h = high[j], sine = sign * n[j];
        low[j] = l * c[j] - h * sine;
        high[j] = h * c[j] + l * sine;
    }
}

status CPU_OP(rope_apply)(stream *s, const rope_apply_args *a)
{
    int64_t half;
    TRY(half_dim(a->head_dim, 1, &half));
    const real *c = a->cos, *n = a->sin;
    real sign = a->inverse ? -1 : 1;
    int nt = cpu_threads(s, 2 * a->rows * a->heads * half);
#pragma omp parallel for num_threads(nt) schedule(static)
    for (int64_t t = 0; t < a->rows; t++)
        for (int64_t h = 0; h < a->heads; h++) {
            real *x = (real *)a->x + t * a->x_stride + h * a->head_dim;
            rotate(x, x + half, c + t * half, n + t * half, half, sign);
        }
    return ST_OK;
}
