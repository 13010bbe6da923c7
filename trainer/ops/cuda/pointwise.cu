/* SPDX-License-Identifier: Apache-2.0 */
/* pointwise.cu: the ops of pointwise.h on CUDA, except patch_input.
 *
 * All of them are limited by memory; the bytes that each must move are stated. A thread moves 16
 * bytes of each operand at once. Odd sizes and addresses take the same kernels one element at a
 * time. Arithmetic is in float and rounded once. */
#include "trainer/ops/cuda/columns.cuh"
#include "trainer/ops/cuda/sigmoid.cuh"

enum {
    THREADS = 256,
    BIAS_WARPS = 8, /* warps of a block: each takes every eighth row of the part */
    /* Rows of one partial sum, 32 for each warp; the parts cost 1.6 % more bytes. */
    BIAS_PART_ROWS = 256
};

/* sqrt(2 / pi), the cubic coefficient, 1 / sqrt(2), 1 / sqrt(2 pi) */
static constexpr float GELU_K0 = 0.79788456080286535588f;
static constexpr float GELU_K1 = 0.044715f;
static constexpr float ROOT_HALF = 0.70710678118654752440f;
static constexpr float GELU_DENSITY = 0.39894228040143267794f;

/* ---- add: 6 bytes an element, 12 of acc ---- */

template <int WIDTH, class T> static __global__ void add_kernel(add_args args)
{
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * WIDTH;
    if (i >= args.n)
        return;
    float x[WIDTH], b[WIDTH];
    load<WIDTH>(x, (const T *)args.a + i);
    load<WIDTH>(b, (const T *)args.b + i);
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
        x[k] += b[k];
    store<WIDTH>((T *)args.y + i, x);
}

template <class T> static status add(stream *queue, const add_args &args)
{
    if (args.n % VECTOR == 0 && aligned16(args.a, args.b, args.y))
        return LAUNCH(queue, (add_kernel<VECTOR, T>), grid_of(ceil_div(args.n, VECTOR * THREADS)),
                      THREADS, 0, args);
    return LAUNCH(queue, (add_kernel<1, T>), grid_of(ceil_div(args.n, THREADS)), THREADS, 0, args);
}

extern "C" status cuda_add(stream *queue, const add_args *args)
{
    add_args all = *args;
    all.b = all.b ? all.b : all.y;
    return all.acc ? add<float>(queue, all) : add<bf16>(queue, all);
}

/* ---- scale: 4 bytes an element ---- */

template <int WIDTH> static __global__ void scale_kernel(scale_args args)
{
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * WIDTH;
    const float factor = (float)args.factor;
    if (i >= args.n)
        return;
    float x[WIDTH];
    load<WIDTH>(x, (const bf16 *)args.y + i);
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
        x[k] *= factor;
    store<WIDTH>((bf16 *)args.y + i, x);
}

extern "C" status cuda_scale(stream *queue, const scale_args *args)
{
    if (args->n % VECTOR == 0 && aligned16(args->y))
        return LAUNCH(queue, scale_kernel<VECTOR>, grid_of(ceil_div(args->n, VECTOR * THREADS)),
                      THREADS, 0, *args);
    return LAUNCH(queue, scale_kernel<1>, grid_of(ceil_div(args->n, THREADS)), THREADS, 0, *args);
}

/* ---- bias_grad: 2 bytes an element ---- */

/* A block owns 32 x WIDTH columns of one part of the rows. Warp w sums the rows w, w + 8, ..; then
 * the warps' sums are added in order. */
template <int WIDTH> static __global__ void bias_kernel(bias_grad_args args, float *partial)
{
    __shared__ float sums[BIAS_WARPS][LANES * WIDTH];
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const int64_t j = ((int64_t)blockIdx.x * LANES + lane) * WIDTH;
    const int64_t first = (int64_t)blockIdx.y * BIAS_PART_ROWS;
    const int64_t end = min(first + BIAS_PART_ROWS, args.rows);
    float sum[WIDTH] = {};
    if (j < args.n) {
        const bf16 *dy = (const bf16 *)args.dy + j;
#pragma unroll 4
        for (int64_t i = first + warp; i < end; i += BIAS_WARPS) {
            float x[WIDTH];
            load<WIDTH>(x, dy + i * args.n);
#pragma unroll
            for (int k = 0; k < WIDTH; k++)
                sum[k] += x[k];
        }
    }
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
        sums[warp][k * LANES + lane] = sum[k];
    __syncthreads();
    if (warp > 0 || j >= args.n)
        return;
#pragma unroll
    for (int part = 1; part < BIAS_WARPS; part++)
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            sum[k] += sums[part][k * LANES + lane];
    store<WIDTH>(partial + blockIdx.y * args.n + j, sum);
}

extern "C" status cuda_bias_grad(stream *queue, const bias_grad_args *args)
{
    int64_t parts = ceil_div(args->rows, BIAS_PART_ROWS);
    void *partial = NULL;
    if (parts == 0 || args->n == 0)
        return ST_OK;
    TRY(cuda_scratch(queue, (size_t)(parts * args->n) * sizeof(float), &partial));
    if (args->n % VECTOR == 0 && aligned16(args->dy))
        TRY(LAUNCH(queue, bias_kernel<VECTOR>, grid_of(ceil_div(args->n, LANES * VECTOR), parts),
                   BIAS_WARPS * LANES, 0, *args, (float *)partial));
    else
        TRY(LAUNCH(queue, bias_kernel<1>, grid_of(ceil_div(args->n, LANES), parts),
                   BIAS_WARPS * LANES, 0, *args, (float *)partial));
    return columns_add(queue, parts, args->n, args->n, (const float *)partial, (float *)args->db);
}

/* ---- swiglu: forward 6 bytes an element of y, backward 10 ---- */

/* The rows that count: all, or as many as the number in device memory says. */
static __device__ __forceinline__ int64_t valid_rows(int64_t rows, const int32_t *n_valid)
{
    if (!n_valid)
        return rows;
    return min(rows, (int64_t)max(*n_valid, 0));
}

template <int WIDTH> static __global__ void swiglu_fwd_kernel(swiglu_fwd_args args)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (i >= valid_rows(args.rows, args.n_valid))
        return;
    const bf16 *gate = (const bf16 *)args.x + i * 2 * args.width, *up = gate + args.width;
    for (int64_t j = threadIdx.x * WIDTH; j < args.width; j += blockDim.x * WIDTH) {
        float g[WIDTH], u[WIDTH];
        load<WIDTH>(g, gate + j);
        load<WIDTH>(u, up + j);
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            u[k] = swiglu(g[k], u[k]);
        store<WIDTH>((bf16 *)args.y + i * args.width + j, u);
    }
}

extern "C" status cuda_swiglu_fwd(stream *queue, const swiglu_fwd_args *args)
{
    if (args->width % VECTOR == 0 && aligned16(args->x, args->y))
        return LAUNCH(queue, swiglu_fwd_kernel<VECTOR>, tile_grid(args->rows, args->width / VECTOR),
                      tile_block(args->width / VECTOR), 0, *args);
    return LAUNCH(queue, swiglu_fwd_kernel<1>, tile_grid(args->rows, args->width),
                  tile_block(args->width), 0, *args);
}

/* The derivative of silu(g) u. dx may be x, since a thread writes only what it has read. */
template <int WIDTH> static __global__ void swiglu_bwd_kernel(swiglu_bwd_args args)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (i >= valid_rows(args.rows, args.n_valid))
        return;
    const bf16 *gate = (const bf16 *)args.x + i * 2 * args.width, *up = gate + args.width;
    bf16 *dgate = (bf16 *)args.dx + i * 2 * args.width, *dup = dgate + args.width;
    for (int64_t j = threadIdx.x * WIDTH; j < args.width; j += blockDim.x * WIDTH) {
        float g[WIDTH], u[WIDTH], dy[WIDTH];
        load<WIDTH>(g, gate + j);
        load<WIDTH>(u, up + j);
        load<WIDTH>(dy, (const bf16 *)args.dy + i * args.width + j);
#pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            float sg = sigmoid(g[k]), keep = u[k];
            u[k] = dy[k] * g[k] * sg;
            g[k] = dy[k] * keep * sg * (1 + g[k] * (1 - sg));
        }
        store<WIDTH>(dgate + j, g);
        store<WIDTH>(dup + j, u);
    }
}

extern "C" status cuda_swiglu_bwd(stream *queue, const swiglu_bwd_args *args)
{
    if (args->width % VECTOR == 0 && aligned16(args->x, args->dy, args->dx))
        return LAUNCH(queue, swiglu_bwd_kernel<VECTOR>, tile_grid(args->rows, args->width / VECTOR),
                      tile_block(args->width / VECTOR), 0, *args);
    return LAUNCH(queue, swiglu_bwd_kernel<1>, tile_grid(args->rows, args->width),
                  tile_block(args->width), 0, *args);
}

/* ---- gelu: forward 4 bytes an element, backward 6 ---- */

/* x sigmoid(2 k0 (x + k1 x^3)) equals x/2 (1 + tanh(k0 (x + k1 x^3))), but does not lose digits for
 * large negative x. */
template <int KIND> static __device__ __forceinline__ float gelu(float x)
{
    if constexpr (KIND == GELU_TANH)
        return x * sigmoid(2 * GELU_K0 * (x + GELU_K1 * x * x * x));
    else
        return 0.5f * x * (1 + erff(x * ROOT_HALF));
}

/* The derivative. For the tanh form, with sg the sigmoid above, 1 + tanh = 2 sg and 1 - tanh^2 = 4
 * sg (1 - sg). */
template <int KIND> static __device__ __forceinline__ float gelu_slope(float x)
{
    if constexpr (KIND == GELU_TANH) {
        float sg = sigmoid(2 * GELU_K0 * (x + GELU_K1 * x * x * x));
        return sg + x * sg * (1 - sg) * (2 * GELU_K0 * (1 + 3 * GELU_K1 * x * x));
    } else {
        return 0.5f * (1 + erff(x * ROOT_HALF)) + x * GELU_DENSITY * __expf(-0.5f * x * x);
    }
}

/* dy is NULL in the forward. */
template <int KIND, int WIDTH>
static __global__ void gelu_kernel(int64_t n, const bf16 *x, const bf16 *dy, bf16 *out)
{
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * WIDTH;
    if (i >= n)
        return;
    float value[WIDTH], grad[WIDTH];
    load<WIDTH>(value, x + i);
    if (dy)
        load<WIDTH>(grad, dy + i);
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
        value[k] = dy ? grad[k] * gelu_slope<KIND>(value[k]) : gelu<KIND>(value[k]);
    store<WIDTH>(out + i, value);
}

template <int KIND>
static status gelu_launch(stream *queue, int64_t n, const bf16 *x, const bf16 *dy, bf16 *out)
{
    if (n % VECTOR == 0 && aligned16(x, dy, out))
        return LAUNCH(queue, (gelu_kernel<KIND, VECTOR>), grid_of(ceil_div(n, VECTOR * THREADS)),
                      THREADS, 0, n, x, dy, out);
    return LAUNCH(queue, (gelu_kernel<KIND, 1>), grid_of(ceil_div(n, THREADS)), THREADS, 0, n, x,
                  dy, out);
}

extern "C" status cuda_gelu_fwd(stream *queue, const gelu_fwd_args *args)
{
    auto run = args->kind == GELU_ERF ? gelu_launch<GELU_ERF> : gelu_launch<GELU_TANH>;
    return run(queue, args->n, (const bf16 *)args->x, NULL, (bf16 *)args->y);
}

extern "C" status cuda_gelu_bwd(stream *queue, const gelu_bwd_args *args)
{
    auto run = args->kind == GELU_ERF ? gelu_launch<GELU_ERF> : gelu_launch<GELU_TANH>;
    return run(queue, args->n, (const bf16 *)args->x, (const bf16 *)args->dy, (bf16 *)args->dx);
}
