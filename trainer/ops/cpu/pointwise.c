/* SPDX-License-Identifier: Apache-2.0 */
/* pointwise.c: additions, bias gradients, activations and the input of patches, on the CPU
 * (pointwise.h). */
#include <string.h>

#include "trainer/ops/cpu/cpu_ops.h"

enum {
    ACTIVATION_WORK = 8, /* an exponential and a division, in element operations */
    BIAS_COLUMNS = 64,   /* columns summed together, in registers and L1 */
    CHANNEL = 256,       /* bytes of one colour of a patch of one frame: 16 x 16 */
    PATCH_STILL = 3 * CHANNEL,
    PATCH_VIDEO = 2 * PATCH_STILL
};

/* The constants of the tanh form of GELU: sqrt(2 / pi), and the coefficient of the cube. */
#define GELU_K0 ((real)0.79788456080286535588)
#define GELU_K1 ((real)0.044715)
/* 1 / sqrt(2 pi) */
#define GELU_DENSITY ((real)0.39894228040143267794)

static void add_part(const void *context, part todo)
{
    const add_args *args = context;
    const real *x = args->a, *b = args->b;
    real *y = args->y;
    if (b) {
#pragma omp simd
        for (int64_t i = todo.begin; i < todo.end; i++)
            y[i] = x[i] + b[i];
    } else {
#pragma omp simd
        for (int64_t i = todo.begin; i < todo.end; i++)
            y[i] += x[i];
    }
}

status CPU_OP(add)(stream *queue, const add_args *args)
{
    cpu_run(queue, args->n, 1, add_part, args);
    return ST_OK;
}

static void scale_part(const void *context, part todo)
{
    const scale_args *args = context;
    const real factor = (real)args->factor;
    real *y = args->y;
#pragma omp simd
    for (int64_t i = todo.begin; i < todo.end; i++)
        y[i] *= factor;
}

status CPU_OP(scale)(stream *queue, const scale_args *args)
{
    cpu_run(queue, args->n, 1, scale_part, args);
    return ST_OK;
}

static void bias_columns(const void *context, part todo)
{
    const bias_grad_args *args = context;
    for (int64_t k = todo.begin; k < todo.end; k++) {
        int64_t j0 = k * BIAS_COLUMNS, width = min_i64(BIAS_COLUMNS, args->n - j0);
        real *db = (real *)args->db + j0, sum[BIAS_COLUMNS] = {0};
        for (int64_t i = 0; i < args->rows; i++) {
            const real *row = (const real *)args->dy + i * args->n + j0;
            for (int64_t j = 0; j < width; j++)
                sum[j] += row[j];
        }
        for (int64_t j = 0; j < width; j++)
            db[j] += sum[j];
    }
}

status CPU_OP(bias_grad)(stream *queue, const bias_grad_args *args)
{
    cpu_run(queue, ceil_div(args->n, BIAS_COLUMNS), args->rows * BIAS_COLUMNS, bias_columns, args);
    return ST_OK;
}

/* The rows that count: all, or as many as the number in device memory says. */
static int64_t valid_rows(int64_t rows, const int32_t *n_valid)
{
    if (!n_valid)
        return rows;
    return *n_valid < 0 ? 0 : min_i64(rows, *n_valid);
}

static void swiglu_fwd_rows(const void *context, part todo)
{
    const swiglu_fwd_args *args = context;
    const int64_t width = args->width;
    for (int64_t i = todo.begin; i < todo.end; i++) {
        const real *gate = (const real *)args->x + i * 2 * width, *up = gate + width;
        real *y = (real *)args->y + i * width;
        swiglu_row(y, gate, up, width);
    }
}

status CPU_OP(swiglu_fwd)(stream *queue, const swiglu_fwd_args *args)
{
    cpu_run(queue, valid_rows(args->rows, args->n_valid), ACTIVATION_WORK * args->width,
            swiglu_fwd_rows, args);
    return ST_OK;
}

static void swiglu_bwd_rows(const void *context, part todo)
{
    const swiglu_bwd_args *args = context;
    const int64_t width = args->width;
    for (int64_t i = todo.begin; i < todo.end; i++) {
        const real *gate = (const real *)args->x + i * 2 * width, *up = gate + width;
        const real *dy = (const real *)args->dy + i * width;
        real *dgate = (real *)args->dx + i * 2 * width, *dup = dgate + width;
#pragma omp simd
        for (int64_t j = 0; j < width; j++) {
            real g = gate[j], u = up[j], sg = real_sigmoid(g);
            dgate[j] = dy[j] * u * sg * (1 + g * (1 - sg));
            dup[j] = dy[j] * g * sg;
        }
    }
}

status CPU_OP(swiglu_bwd)(stream *queue, const swiglu_bwd_args *args)
{
    cpu_run(queue, valid_rows(args->rows, args->n_valid), ACTIVATION_WORK * args->width,
            swiglu_bwd_rows, args);
    return ST_OK;
}

/* x sigmoid(2 k0 (x + k1 x^3)) equals x/2 (1 + tanh(k0 (x + k1 x^3))), but does not lose digits for
 * large negative x. */
static void gelu_tanh(real *y, const real *x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        real v = x[i];
        y[i] = v * real_sigmoid(2 * GELU_K0 * (v + GELU_K1 * v * v * v));
    }
}

static void gelu_erf(real *y, const real *x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        real v = x[i];
        y[i] = v * real_normal_cdf(v, real_exp(-v * v / 2));
    }
}

/* With sg the sigmoid above, 1 + tanh = 2 sg and 1 - tanh^2 = 4 sg (1 - sg). */
static void gelu_tanh_bwd(real *dx, const real *x, const real *dy, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        real v = x[i], sg = real_sigmoid(2 * GELU_K0 * (v + GELU_K1 * v * v * v));
        real slope = 2 * GELU_K0 * (1 + 3 * GELU_K1 * v * v);
        dx[i] = dy[i] * (sg + v * sg * (1 - sg) * slope);
    }
}

static void gelu_erf_bwd(real *dx, const real *x, const real *dy, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        real v = x[i], bell = real_exp(-v * v / 2);
        dx[i] = dy[i] * (real_normal_cdf(v, bell) + v * GELU_DENSITY * bell);
    }
}

static void gelu_fwd_part(const void *context, part todo)
{
    const gelu_fwd_args *args = context;
    const real *x = (const real *)args->x + todo.begin;
    (args->kind == GELU_ERF ? gelu_erf : gelu_tanh)((real *)args->y + todo.begin, x,
                                                    todo.end - todo.begin);
}

status CPU_OP(gelu_fwd)(stream *queue, const gelu_fwd_args *args)
{
    cpu_run(queue, args->n, ACTIVATION_WORK, gelu_fwd_part, args);
    return ST_OK;
}

static void gelu_bwd_part(const void *context, part todo)
{
    const gelu_bwd_args *args = context;
    const real *x = (const real *)args->x + todo.begin, *dy = (const real *)args->dy + todo.begin;
    (args->kind == GELU_ERF ? gelu_erf_bwd : gelu_tanh_bwd)((real *)args->dx + todo.begin, x, dy,
                                                            todo.end - todo.begin);
}

status CPU_OP(gelu_bwd)(stream *queue, const gelu_bwd_args *args)
{
    cpu_run(queue, args->n, ACTIVATION_WORK, gelu_bwd_part, args);
    return ST_OK;
}

static void normalise_pixels(real *out, const uint8_t *in, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = ((real)in[i] - (real)127.5) / (real)127.5;
}

static void patch_rows(const void *context, part todo)
{
    const patch_input_args *args = context;
    for (int64_t i = todo.begin; i < todo.end; i++) {
        real *out = (real *)args->out + i * PATCH_VIDEO;
        if (args->video) {
            normalise_pixels(out, args->pixels + i * PATCH_VIDEO, PATCH_VIDEO);
            continue;
        }
        for (int j = 0; j < 3; j++) {
            real *frames = out + (ptrdiff_t)j * 2 * CHANNEL;
            normalise_pixels(frames, args->pixels + i * PATCH_STILL + j * CHANNEL, CHANNEL);
            memcpy(frames + CHANNEL, frames, CHANNEL * sizeof *frames);
        }
    }
}

status CPU_OP(patch_input)(stream *queue, const patch_input_args *args)
{
    cpu_run(queue, args->patches, PATCH_VIDEO, patch_rows, args);
    return ST_OK;
}
