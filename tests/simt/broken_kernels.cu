/* SPDX-License-Identifier: Apache-2.0 */
/* broken_kernels.cu: kernels for test_simt.c. Some are right, and some have planted faults.
 * Letters: x what a kernel reads or changes; y what it writes; n how many; a, b the factors of a
 * product; c its sums. */
#include "tests/simt/broken_kernels.h"
#include "trainer/ops/cuda/kernel_launch.cuh"
#include "trainer/ops/cuda/mma.cuh"

enum { THREADS = 64 };

static __global__ void reverse_kernel(int *x, bool barrier)
{
    SHARED_BYTES(bytes);
    int *tile = (int *)bytes, *mine = x + blockIdx.x * THREADS;
    tile[threadIdx.x] = mine[threadIdx.x];
    if (barrier)
        __syncthreads();
    mine[threadIdx.x] = tile[THREADS - 1 - threadIdx.x];
}

static __global__ void split_barrier_kernel(int *x)
{
    x[threadIdx.x] = 1;
    if (threadIdx.x < LANES)
        __syncthreads();
    else
        __syncthreads();
}

static __global__ void early_return_kernel(int *x)
{
    x[threadIdx.x] = 1;
    if (threadIdx.x == 5)
        return;
    __syncthreads();
}

static __global__ void missing_lane_kernel(float *x)
{
    if (threadIdx.x % LANES < 31)
        x[threadIdx.x] = warp_sum(x[threadIdx.x]);
}

static __global__ void outside_mask_kernel(float *x)
{
    if (threadIdx.x < 4)
        x[threadIdx.x] = __shfl_sync(0xfu, x[threadIdx.x], (int)threadIdx.x + 1);
}

static __global__ void beyond_shared_kernel(int *x)
{
    SHARED_BYTES(bytes);
    ((int *)bytes)[threadIdx.x + 1] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = ((int *)bytes)[threadIdx.x];
}

static __global__ void sums_kernel(float *x)
{
    float mine = x[threadIdx.x];
    x[threadIdx.x] = block_sum<THREADS / LANES>(mine);
    x[THREADS + threadIdx.x] = block_sum<THREADS / LANES>(2 * mine);
    unsigned lane = threadIdx.x % LANES, odd = __ballot_sync(0xffffffffu, (int)(lane & 1));
    x[2 * THREADS + threadIdx.x] = (float)__popc(odd);
    x[3 * THREADS + threadIdx.x] = __shfl_down_sync(0xffffffffu, mine, 3, 8);
    x[4 * THREADS + threadIdx.x] = __shfl_up_sync(0xffffffffu, mine, 3, 8);
    x[5 * THREADS + threadIdx.x] = (float)__reduce_max_sync(0xffffffffu, (int)lane - 40);
}

static __global__ void bf16_kernel(int64_t n, const float *x, unsigned short *y)
{
    for (int64_t i = threadIdx.x; i < n; i += THREADS) {
        bf16 rounded = to_bf16(x[i]);
        memcpy(y + i, &rounded, sizeof rounded);
    }
}

/* A product by one warp, by way of shared memory. */
static __global__ void product_kernel(const bf16 *x, float *y, bool wait)
{
    SHARED_BYTES(bytes);
    const int lane = (int)threadIdx.x;
    bf16 *a_tile = (bf16 *)bytes, *b_tile = a_tile + 16 * 16;
    copy16_async(a_tile + lane * VECTOR, x + lane * VECTOR, true);
    if (lane < 16)
        copy16_async(b_tile + lane * VECTOR, x + 16 * 16 + lane * VECTOR, true);
    copy_commit();
    if (wait)
        copy_wait<0>();
    else
        copy_wait<1>();
    __syncwarp();
    uint32_t a[4], b[4];
    float c[4] = {};
    ldmatrix4(a, a_tile + lane % 16 * 16 + lane / 16 * 8);
    ldmatrix4_transposed(b, b_tile + lane % 16 * 8);
    mma_16x8x16(c, a, b[0], b[1]);
    for (int i = 0; i < 4; i++)
        y[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = c[i];
    copy_wait<0>();
}

static __device__ __forceinline__ float square(float x)
{
    return x * x;
}

/* The product and the difference are statements of two functions, which nvcc fuses too. */
static __global__ void fused_kernel(const float *x, float *y)
{
    const float factor = x[0], rounded = x[1], product = square(factor);
    y[0] = product - rounded;
    y[1] = __fmul_rn(factor, factor) - rounded;
}

static __global__ void fast_kernel(int64_t n, const float *x, float *y)
{
    for (int64_t i = threadIdx.x; i < n; i += THREADS) {
        y[i] = exp2_fast(x[i]);
        y[n + i] = __fdividef(1, x[i]);
    }
}

extern "C" status fault_run(stream *queue, int fault, void *x, void *y, int64_t n)
{
    const size_t tile = THREADS * sizeof(int);
    switch (fault) {
    case FAULT_NONE:
        return LAUNCH(queue, reverse_kernel, grid_of(n / THREADS), THREADS, tile, (int *)x, true);
    case FAULT_NO_BARRIER:
        return LAUNCH(queue, reverse_kernel, grid_of(n / THREADS), THREADS, tile, (int *)x, false);
    case FAULT_SPLIT_BARRIER:
        return LAUNCH(queue, split_barrier_kernel, 1, THREADS, 0, (int *)x);
    case FAULT_EARLY_RETURN:
        return LAUNCH(queue, early_return_kernel, 1, THREADS, 0, (int *)x);
    case FAULT_MISSING_LANE:
        return LAUNCH(queue, missing_lane_kernel, 1, THREADS, 0, (float *)x);
    case FAULT_OUTSIDE_MASK:
        return LAUNCH(queue, outside_mask_kernel, 1, THREADS, 0, (float *)x);
    case FAULT_BEYOND_SHARED:
        return LAUNCH(queue, beyond_shared_kernel, 1, THREADS, tile, (int *)x);
    case FAULT_TOO_MANY_THREADS:
        return LAUNCH(queue, sums_kernel, 1, 2048, 0, (float *)x);
    case FAULT_NONE_SUMS:
        return LAUNCH(queue, sums_kernel, 1, THREADS, 0, (float *)x);
    case FAULT_NONE_PRODUCT:
    case FAULT_NO_WAIT:
        return LAUNCH(queue, product_kernel, 1, LANES, (16 * 16 + 16 * 8) * sizeof(bf16),
                      (const bf16 *)x, (float *)y, fault == FAULT_NONE_PRODUCT);
    case FAULT_NONE_FUSED:
        return LAUNCH(queue, fused_kernel, 1, 1, 0, (const float *)x, (float *)y);
    case FAULT_NONE_FAST:
        return LAUNCH(queue, fast_kernel, 1, THREADS, 0, n, (const float *)x, (float *)y);
    default:
        return LAUNCH(queue, bf16_kernel, 1, THREADS, 0, n, (const float *)x, (unsigned short *)y);
    }
}
