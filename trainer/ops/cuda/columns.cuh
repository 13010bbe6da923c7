/* SPDX-License-Identifier: Apache-2.0 */
/* columns.cuh: sums over rows in a fixed order. A kernel leaves one partial row for each part of
 * the rows, and the code here adds the parts. Parts are cut by shape alone, so the bits are the
 * same on every GPU. */
#ifndef TESSERA_TRAINER_OPS_CUDA_COLUMNS_CUH
#define TESSERA_TRAINER_OPS_CUDA_COLUMNS_CUH

#include "trainer/ops/cuda/kernel_launch.cuh"

enum { COLUMN_WARPS = 32 }; /* warps of a block: so many parts are read at once for each column */

/* One block owns 32 columns, one for each lane. Warp w adds the parts w, w + 32, ..; then the
 * warps' sums are added in order. The parts x n floats it reads are still in the L2 cache. */
static __global__ void columns_kernel(int64_t parts, int64_t n, int64_t stride,
                                      const float *partial, float *out)
{
    __shared__ float sums[COLUMN_WARPS][LANES];
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const int64_t j = (int64_t)blockIdx.x * LANES + lane;
    float sum = 0;
    if (j < n)
#pragma unroll 8
        for (int64_t part = warp; part < parts; part += COLUMN_WARPS)
            sum += partial[part * stride + j];
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || j >= n)
        return;
#pragma unroll
    for (int w = 1; w < COLUMN_WARPS; w++)
        sum += sums[w][lane];
    out[j] += sum;
}

/* out[j] += sum over parts of partial[part * stride + j], j < n. */
static inline status columns_add(stream *queue, int64_t parts, int64_t n, int64_t stride,
                                 const float *partial, float *out)
{
    return LAUNCH(queue, columns_kernel, grid_of(ceil_div(n, LANES)), COLUMN_WARPS * LANES, 0,
                  parts, n, stride, partial, out);
}

#endif
