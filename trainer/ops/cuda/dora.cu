/* SPDX-License-Identifier: Apache-2.0 */
/* dora.cu: the ops of norm.h on CUDA.
 *
 * dora_norm: a warp has 4 rows of W, so that each piece of A is read from the L2 cache once for
 * them; out x in x 2 bytes of W come from memory, and in x rank x out multiply-adds are the work.
 * dora_fwd and dora_bwd are limited by memory: 4 bytes an element (6 with a residual), and 6. The
 * sums over rows go through one partial sum for each 256 rows (columns.cuh). Arithmetic is in
 * float. */
#include "trainer/ops/cuda/columns.cuh"

enum {
    THREADS = 256,
    WARPS = THREADS / LANES,
    ROWS = 4,        /* of W for a warp */
    PART_ROWS = 256, /* rows of one partial sum */
    PART_WARPS = 8
};

static __device__ __forceinline__ float warp_total(float sum)
{
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

static __global__ void __launch_bounds__(THREADS) norm_kernel(dora_norm_args args)
{
    const int lane = threadIdx.x % LANES;
    const int64_t first = ((int64_t)blockIdx.x * WARPS + threadIdx.x / LANES) * ROWS;
    const int rows = (int)min((int64_t)ROWS, args.out - first);
    const bf16 *w = (const bf16 *)args.w + first * args.in, *a = (const bf16 *)args.a;
    const bf16 *b = (const bf16 *)args.b + first * args.rank;
    const float scale = (float)args.scale;
    float squares[ROWS] = {};
    if (rows <= 0)
        return;
    for (int64_t i = lane; i < args.in; i += LANES) {
        float sum[ROWS] = {};
        for (int64_t k = 0; k < args.rank; k++) {
            const float x = to_float(a[k * args.in + i]);
#pragma unroll
            for (int j = 0; j < ROWS; j++)
                if (j < rows)
                    sum[j] += to_float(b[j * args.rank + k]) * x;
        }
#pragma unroll
        for (int j = 0; j < ROWS; j++)
            if (j < rows) {
                const float value = to_float(w[j * args.in + i]) + scale * sum[j];
                squares[j] += value * value;
            }
    }
#pragma unroll
    for (int j = 0; j < ROWS; j++) {
        const float total = warp_total(squares[j]);
        if (lane == 0 && j < rows)
            ((bf16 *)args.norm)[first + j] = to_bf16(sqrtf(total));
    }
}

extern "C" status cuda_dora_norm(stream *queue, const dora_norm_args *args)
{
    return LAUNCH(queue, norm_kernel, grid_of(ceil_div(args->out, WARPS * ROWS)), THREADS, 0,
                  *args);
}

template <int WIDTH> static __global__ void fwd_kernel(dora_fwd_args args)
{
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * WIDTH;
    if (i >= args.rows * args.n)
        return;
    const int64_t row = i / args.n, j = i % args.n;
    float z[WIDTH], m[WIDTH], norm[WIDTH], from[WIDTH] = {};
    load<WIDTH>(z, (const bf16 *)args.z + i);
    load<WIDTH>(m, (const bf16 *)args.m + j);
    load<WIDTH>(norm, (const bf16 *)args.norm + j);
    if (args.residual)
        load<WIDTH>(from, (const bf16 *)args.residual + i);
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
        z[k] = m[k] / norm[k] * z[k] + from[k];
    store<WIDTH>((bf16 *)args.y + row * args.y_stride + j, z);
}

extern "C" status cuda_dora_fwd(stream *queue, const dora_fwd_args *args)
{
    const int64_t count = args->rows * args->n;
    if (args->n % VECTOR == 0 && args->y_stride % VECTOR == 0 &&
        aligned16(args->z, args->m, args->norm) && aligned16(args->y) &&
        (!args->residual || aligned16(args->residual)))
        return LAUNCH(queue, fwd_kernel<VECTOR>, grid_of(ceil_div(count, VECTOR * THREADS)),
                      THREADS, 0, *args);
    return LAUNCH(queue, fwd_kernel<1>, grid_of(ceil_div(count, THREADS)), THREADS, 0, *args);
}

/* A block has 32 columns of one part of the rows; warp w takes the rows w, w + 8, .., and the
 * warps' sums are added in order. */
static __global__ void bwd_kernel(dora_bwd_args args, float *partial)
{
    __shared__ float sums[PART_WARPS][LANES];
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const int64_t j = (int64_t)blockIdx.x * LANES + lane;
    const int64_t first = (int64_t)blockIdx.y * PART_ROWS;
    const int64_t end = min(first + PART_ROWS, args.rows);
    float sum = 0, norm = 1;
    if (j < args.n) {
        norm = to_float(((const bf16 *)args.norm)[j]);
        const float factor = to_float(((const bf16 *)args.m)[j]) / norm;
        for (int64_t i = first + warp; i < end; i += PART_WARPS) {
            const float dy = to_float(((const bf16 *)args.dy)[i * args.dy_stride + j]);
            sum += dy * to_float(((const bf16 *)args.z)[i * args.n + j]);
            ((bf16 *)args.dz)[i * args.n + j] = to_bf16(factor * dy);
        }
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || j >= args.n)
        return;
#pragma unroll
    for (int k = 1; k < PART_WARPS; k++)
        sum += sums[k][lane];
    partial[blockIdx.y * args.n + j] = sum / norm;
}

extern "C" status cuda_dora_bwd(stream *queue, const dora_bwd_args *args)
{
    const int64_t parts = ceil_div(args->rows, PART_ROWS);
    void *partial = NULL;
    if (parts == 0 || args->n == 0)
        return ST_OK;
    TRY(cuda_scratch(queue, (size_t)(parts * args->n) * sizeof(float), &partial));
    TRY(LAUNCH(queue, bwd_kernel, grid_of(ceil_div(args->n, LANES), parts), PART_WARPS * LANES, 0,
               *args, (float *)partial));
    return columns_add(queue, parts, args->n, args->n, (const float *)partial, (float *)args->dm);
}
