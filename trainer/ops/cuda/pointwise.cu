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

template <int WIDTH, class T> static __global__ void add_kernel(add_args a)
{
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * WIDTH;
    if (i >= a.n)
        return;
    float x[WIDTH], b[WIDTH];
    load<WIDTH>(x, (const T *)a.a + i);
    load<WIDTH>(b, (const T *)a.b + i);
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
        x[k] += b[k];
    store<WIDTH>((T *)a.y + i, x);
}

template <class T> static status add(stream *s, const add_args &a)
{
    if (a.n % VECTOR == 0 && aligned16(a.a, a.b, a.y))
        return LAUNCH(s, (add_kernel<VECTOR, T>), grid_of(ceil_div(a.n, VECTOR * THREADS)), THREADS,
                      0, a);
    return LAUNCH(s, (add_kernel<1, T>), grid_of(ceil_div(a.n, THREADS)), THREADS, 0, a);
}

extern "C" status cuda_add(stream *s, const add_args *args)
{
    add_args a = *args;
    a.b = a.b ? a.b : a.y;
    return a.acc ? add<float>(s, a) : add<bf16>(s, a);
}

/* ---- scale: 4 bytes an element ---- */

template <int WIDTH> static __global__ void scale_kernel(scale_args a)
{
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * WIDTH;
    const float factor = (float)a.factor;
    if (i >= a.n)
        return;
    float x[WIDTH];
    load<WIDTH>(x, (const bf16 *)a.y + i);
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
        x[k] *= factor;
    store<WIDTH>((bf16 *)a.y + i, x);
}

extern "C" status cuda_scale(stream *s, const scale_args *a)
{
    if (a->n % VECTOR == 0 && aligned16(a->y))
        return LAUNCH(s, scale_kernel<VECTOR>, grid_of(ceil_div(a->n, VECTOR * THREADS)), THREADS,
                      0, *a);
    return LAUNCH(s, scale_kernel<1>, grid_of(ceil_div(a->n, THREADS)), THREADS, 0, *a);
}

/* ---- bias_grad: 2 bytes an element ---- */

/* A block owns 32 x WIDTH columns of one part of the rows. Warp w sums the rows w, w + 8, ..; then
 * the warps' sums are added in order. */
template <int WIDTH> static __global__ void bias_kernel(bias_grad_args a, float *partial)
{
    __shared__ float sums[BIAS_WARPS][LANES * WIDTH];
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const int64_t j = ((int64_t)blockIdx.x * LANES + lane) * WIDTH;
    const int64_t first = (int64_t)blockIdx.y * BIAS_PART_ROWS;
    const int64_t end = min(first + BIAS_PART_ROWS, a.rows);
    float sum[WIDTH] = {};
    if (j < a.n) {
        const bf16 *dy = (const bf16 *)a.dy + j;
#pragma unroll 4
        for (int64_t i = first + warp; i < end; i += BIAS_WARPS) {
            float x[WIDTH];
            load<WIDTH>(x, dy + i * a.n);
#pragma unroll
            for (int k = 0; k < WIDTH; k++)
                sum[k] += x[k];
        }
    }
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
        sums[warp][k * LANES + lane] = sum[k];
    __syncthreads();
    if (warp > 0 || j >= a.n)
        return;
#pragma unroll
    for (int w = 1; w < BIAS_WARPS; w++)
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            sum[k] += sums[w][k * LANES + lane];
    store<WIDTH>(partial + blockIdx.y * a.n + j, sum);
}

extern "C" status cuda_bias_grad(stream *s, const bias_grad_args *a)
{
    int64_t parts = ceil_div(a->rows, BIAS_PART_ROWS);
    void *partial = NULL;
    if (parts == 0 || a->n == 0)
        return ST_OK;
    TRY(cuda_scratch(s, (size_t)(parts * a->n) * sizeof(float), &partial));
    if (a->n % VECTOR == 0 && aligned16(a->dy))
        TRY(LAUNCH(s, bias_kernel<VECTOR>, grid_of(ceil_div(a->n, LANES * VECTOR), parts),
                   BIAS_WARPS * LANES, 0, *a, (float *)partial));
    else
        TRY(LAUNCH(s, bias_kernel<1>, grid_of(ceil_div(a->n, LANES), parts), BIAS_WARPS * LANES, 0,
                   *a, (float *)partial));
    return columns_add(s, parts, a->n, a->n, (const float *)partial, (float *)a->db);
}

/* ---- swiglu: forward 6 bytes an element of y, backward 10 ---- */

/* The rows that count: all, or as many as the number in device memory says. */
static __device__ __forceinline__ int64_t valid_rows(int64_t rows, const int32_t *n_valid)
{
    if (!n_valid)
        return rows;
    return min(rows, (int64_t)max(*n_valid, 0));
}

template <int WIDTH> static __global__ void swiglu_fwd_kernel(swiglu_fwd_args a)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (i >= valid_rows(a.rows, a.n_valid))
        return;
    const bf16 *gate = (const bf16 *)a.x + i * 2 * a.width, *up = gate + a.width;
    for (int64_t j = threadIdx.x * WIDTH; j < a.width; j += blockDim.x * WIDTH) {
        float g[WIDTH], u[WIDTH];
        load<WIDTH>(g, gate + j);
        load<WIDTH>(u, up + j);
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            u[k] = swiglu(g[k], u[k]);
        store<WIDTH>((bf16 *)a.y + i * a.width + j, u);
    }
}

extern "C" status cuda_swiglu_fwd(stream *s, const swiglu_fwd_args *a)
{
    if (a->width % VECTOR == 0 && aligned16(a->x, a->y))
        return LAUNCH(s, swiglu_fwd_kernel<VECTOR>, tile_grid(a->rows, a->width / VECTOR),
                      tile_block(a->width / VECTOR), 0, *a);
    return LAUNCH(s, swiglu_fwd_kernel<1>, tile_grid(a->rows, a->width), tile_block(a->width), 0,
                  *a);
}

/* The derivative of silu(g) u. dx may be x, since a thread writes only what it has read. */
template <int WIDTH> static __global__ void swiglu_bwd_kernel(swiglu_bwd_args a)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (i >= valid_rows(a.rows, a.n_valid))
        return;
    const bf16 *gate = (const bf16 *)a.x + i * 2 * a.width, *up = gate + a.width;
    bf16 *dgate = (bf16 *)a.dx + i * 2 * a.width, *dup = dgate + a.width;
    for (int64_t j = threadIdx.x * WIDTH; j < a.width; j += blockDim.x * WIDTH) {
        float g[WIDTH], u[WIDTH], dy[WIDTH];
        load<WIDTH>(g, gate + j);
        load<WIDTH>(u, up + j);
        load<WIDTH>(dy, (const bf16 *)a.dy + i * a.width + j);
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

extern "C" status cuda_swiglu_bwd(stream *s, const swiglu_bwd_args *a)
{
    if (a->width % VECTOR == 0 && aligned16(a->x, a->dy, a->dx))
        return LAUNCH(s, swiglu_bwd_kernel<VECTOR>, tile_grid(a->rows, a->width / VECTOR),
                      tile_block(a->width / VECTOR), 0, *a);
    return LAUNCH(s, swiglu_bwd_kernel<1>, tile_grid(a->rows, a->width), tile_block(a->width), 0,
                  *a);
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
    float v[WIDTH], d[WIDTH];
    load<WIDTH>(v, x + i);
    if (dy)
        load<WIDTH>(d, dy + i);
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
        v[k] = dy ? d[k] * gelu_slope<KIND>(v[k]) : gelu<KIND>(v[k]);
    store<WIDTH>(out + i, v);
}

template <int KIND>
static status gelu_launch(stream *s, int64_t n, const bf16 *x, const bf16 *dy, bf16 *out)
{
    if (n % VECTOR == 0 && aligned16(x, dy, out))
        return LAUNCH(s, (gelu_kernel<KIND, VECTOR>), grid_of(ceil_div(n, VECTOR * THREADS)),
                      THREADS, 0, n, x, dy, out);
    return LAUNCH(s, (gelu_kernel<KIND, 1>), grid_of(ceil_div(n, THREADS)), THREADS, 0, n, x, dy,
                  out);
}

extern "C" status cuda_gelu_fwd(stream *s, const gelu_fwd_args *a)
{
    auto run = a->kind == GELU_ERF ? gelu_launch<GELU_ERF> : gelu_launch<GELU_TANH>;
    return run(s, a->n, (const bf16 *)a->x, NULL, (bf16 *)a->y);
}

extern "C" status cuda_gelu_bwd(stream *s, const gelu_bwd_args *a)
{
    auto run = a->kind == GELU_ERF ? gelu_launch<GELU_ERF> : gelu_launch<GELU_TANH>;
    return run(s, a->n, (const bf16 *)a->x, (const bf16 *)a->dy, (bf16 *)a->dx);
}
