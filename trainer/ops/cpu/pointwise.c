/* pointwise.c: additions, bias gradients, activations, patch input (pointwise.h).
 * Long arrays are cut into CHUNK elements per task; each element is independent of the cut. */
#include <string.h>

#include "trainer/ops/cpu/cpu.h"

enum {
    CHUNK = 4096,      /* elements: 16 KiB of floats, half of L1 */
    BIAS_COLUMNS = 64, /* columns summed by one task */
    PATCH_STILL = 768, /* bytes of one frame's patch: 3 channels of 16 x 16 */
    PATCH_VIDEO = 2 * PATCH_STILL
};

/* The spec's constants of tanh-GELU: sqrt(2 / pi) and the cubic coefficient. */
#define GELU_K0 ((real)0.79788456080286535588)
#define GELU_K1 ((real)0.044715)
/* 1 / sqrt(2) and 1 / sqrt(2 pi) */
#define GELU_HALF_ROOT ((real)0.70710678118654752440)
#define GELU_DENSITY   ((real)0.39894228040143267794)

status CPU_OP(add)(stream *s, const add_args *a)
{
    const real *x = a->a, *b = a->b;
    real *y = a->y;
    int nt = cpu_threads(s, a->n);
    if (b) {
#pragma omp parallel for simd num_threads(nt) schedule(static)
        for (int64_t i = 0; i < a->n; i++)
            y[i] = x[i] + b[i];
    } else {
#pragma omp parallel for simd num_threads(nt) schedule(static)
        for (int64_t i = 0; i < a->n; i++)
            y[i] += x[i];
    }
    return ST_OK;
}

status CPU_OP(bias_grad)(stream *s, const bias_grad_args *a)
{
    const real *dy = a->dy;
    real *db = a->db;
    int nt = cpu_threads(s, a->rows * a->n);
#pragma omp parallel for num_threads(nt) schedule(static)
    for (int64_t j0 = 0; j0 < a->n; j0 += BIAS_COLUMNS) {
        int64_t width = min_i64(BIAS_COLUMNS, a->n - j0);
        real sum[BIAS_COLUMNS] = {0};
        for (int64_t i = 0; i < a->rows; i++) {
            const real *row = dy + i * a->n + j0;
            for (int64_t j = 0; j < width; j++)
                sum[j] += row[j];
        }
        for (int64_t j = 0; j < width; j++)
            db[j0 + j] += sum[j];
    }
    return ST_OK;
}

/* Rows that count: all, or up to the device's own number, which a caller can not see. */
static int64_t valid_rows(int64_t rows, const int32_t *n_valid)
{
    if (!n_valid)
        return rows;
    return *n_valid < 0 ? 0 : min_i64(rows, *n_valid);
}

status CPU_OP(swiglu_fwd)(stream *s, const swiglu_fwd_args *a)
{
    const int64_t n = a->width, rows = valid_rows(a->rows, a->n_valid);
    int nt = cpu_threads(s, 8 * rows * n);
#pragma omp parallel for num_threads(nt) schedule(static)
    for (int64_t i = 0; i < rows; i++) {
        const real *gate = (const real *)a->x + i * 2 * n, *up = gate + n;
        real *y = (real *)a->y + i * n;
#pragma omp simd
        for (int64_t j = 0; j < n; j++)
            y[j] = gate[j] * real_sigmoid(gate[j]) * up[j];
    }
    return ST_OK;
}

status CPU_OP(swiglu_bwd)(stream *s, const swiglu_bwd_args *a)
{
    const int64_t n = a->width, rows = valid_rows(a->rows, a->n_valid);
    int nt = cpu_threads(s, 10 * rows * n);
#pragma omp parallel for num_threads(nt) schedule(static)
    for (int64_t i = 0; i < rows; i++) {
        const real *gate = (const real *)a->x + i * 2 * n, *up = gate + n;
        const real *dy = (const real *)a->dy + i * n;
        real *dgate = (real *)a->dx + i * 2 * n, *dup = dgate + n;
#pragma omp simd
        for (int64_t j = 0; j < n; j++) {
            real g = gate[j], u = up[j], sg = real_sigmoid(g);
            dgate[j] = dy[j] * u * sg * (1 + g * (1 - sg));
            dup[j] = dy[j] * g * sg;
        }
    }
    return ST_OK;
}

/* x sigmoid(2 k0 (x + k1 x^3)) is x/2 (1 + tanh(..)), without its loss of digits at the left. */
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
    for (int64_t i = 0; i < n; i++)
        y[i] = (real)0.5 * x[i] * (1 + REAL_ERF(x[i] * GELU_HALF_ROOT));
}

/* With sg the sigmoid above: 1 + t = 2 sg and 1 - t^2 = 4 sg (1 - sg). */
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
    for (int64_t i = 0; i < n; i++) {
        real v = x[i];
        real density = GELU_DENSITY * real_exp(-v * v / 2);
        dx[i] = dy[i] * ((real)0.5 * (1 + REAL_ERF(v * GELU_HALF_ROOT)) + v * density);
    }
}

status CPU_OP(gelu_fwd)(stream *s, const gelu_fwd_args *a)
{
    const real *x = a->x;
    real *y = a->y;
    int nt = cpu_threads(s, 8 * a->n);
#pragma omp parallel for num_threads(nt) schedule(static)
    for (int64_t i = 0; i < a->n; i += CHUNK)
        (a->kind == GELU_ERF ? gelu_erf : gelu_tanh)(y + i, x + i, min_i64(CHUNK, a->n - i));
    return ST_OK;
}

status CPU_OP(gelu_bwd)(stream *s, const gelu_bwd_args *a)
{
    const real *x = a->x, *dy = a->dy;
    real *dx = a->dx;
    int nt = cpu_threads(s, 10 * a->n);
#pragma omp parallel for num_threads(nt) schedule(static)
    for (int64_t i = 0; i < a->n; i += CHUNK)
        (a->kind == GELU_ERF ? gelu_erf_bwd : gelu_tanh_bwd)(dx + i, x + i, dy + i,
                                                             min_i64(CHUNK, a->n - i));
    return ST_OK;
}

static void normalise(real *out, const uint8_t *in, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = ((real)in[i] - (real)127.5) / (real)127.5;
}

status CPU_OP(patch_input)(stream *s, const patch_input_args *a)
{
    enum { CHANNEL = 256 }; /* 16 x 16 */
    int nt = cpu_threads(s, a->patches * PATCH_VIDEO);
#pragma omp parallel for num_threads(nt) schedule(static)
    for (int64_t i = 0; i < a->patches; i++) {
        real *out = (real *)a->out + i * PATCH_VIDEO;
        if (a->video) {
            normalise(out, a->pixels + i * PATCH_VIDEO, PATCH_VIDEO);
            continue;
        }
        for (int c = 0; c < 3; c++) {
            real *frames = out + c * 2 * CHANNEL;
            normalise(frames, a->pixels + i * PATCH_STILL + c * CHANNEL, CHANNEL);
            memcpy(frames + CHANNEL, frames, CHANNEL * sizeof *frames);
        }
    }
    return ST_OK;
}
