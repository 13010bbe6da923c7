/* SPDX-License-Identifier: Apache-2.0 */
/* kernel_launch.cuh: what the hand-written kernels share: launching, bf16 in 16-byte pieces, and
 * sums in a fixed order. It is compiled by nvcc for the GPU and by a C++ compiler for the harness
 * of tests/simt.
 *
 *   extern "C" status cuda_NAME(stream *s, const NAME_args *a)
 *   {
 *       return LAUNCH(s, name_kernel, grid_of(ceil_div(n, THREADS)), THREADS, 0, *a);
 *   }
 *
 * A launcher checks shapes, chooses a kernel and launches it. It allocates nothing but cuda_scratch
 * and never waits, so that a step can be captured. */
#ifndef TESSERA_TRAINER_OPS_CUDA_KERNEL_LAUNCH_CUH
#define TESSERA_TRAINER_OPS_CUDA_KERNEL_LAUNCH_CUH

#include <assert.h>
#include <cuda_bf16.h>

#include "trainer/device/cuda.h"
#include "trainer/ops/table.h"

/* Declares cuda_NAME for every op. One that has no definition stays NULL in the table (table.c). */
#define OP(name) extern "C" status cuda_##name(stream *s, const struct name##_args *a);
#include "trainer/ops/ops.def"

typedef __nv_bfloat16 bf16;

enum {
    LANES = 32, /* lanes of a warp */
    VECTOR = 8  /* bf16 numbers in a 16-byte access, the widest that a thread can make */
};

/* ---- host ---- */

static inline int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* A grid of x * y blocks. More than a grid can hold become a number that the launch refuses. */
static inline dim3 grid_of(int64_t x, int64_t y = 1)
{
    const int64_t refused = 0xffffffff;
    return dim3((unsigned)(x < refused ? x : refused), (unsigned)(y < refused ? y : refused));
}

/* Whether each of these addresses allows accesses of `bytes`, a power of two. */
template <class... P> static inline bool aligned(int bytes, const P *...at)
{
    return (((uintptr_t)at | ...) & (uintptr_t)(bytes - 1)) == 0;
}

template <class... P> static inline bool aligned16(const P *...at)
{
    return aligned(16, at...);
}

/* Block and grid for threads over [rows, items]. x runs along a row, with a loop over what
 * blockDim.x leaves of it; y runs over the rows of the block. Short rows share a block, and
 * neighbouring threads stay neighbours in memory. */
enum { TILE_THREADS = 256 };

static inline dim3 tile_block(int64_t items)
{
    const int64_t most = TILE_THREADS;
    unsigned x = (unsigned)(items < 1 ? 1 : items < most ? items : most);
    return dim3(x, TILE_THREADS / x);
}

static inline dim3 tile_grid(int64_t rows, int64_t items)
{
    return items == 0 ? dim3(0) : grid_of(ceil_div(rows, tile_block(items).y));
}

/* Launches a kernel. No blocks means that there is nothing to do, so callers need no special case
 * for sizes of 0. */
template <class... P, class... A>
static status launch(const char *file, int line, const char *name, stream *queue,
                     void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, A... args)
{
    if (grid.x == 0 || grid.y == 0)
        return ST_OK;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = cuda_handle(queue);
    cudaError_t error = cudaLaunchKernelEx(&config, kernel, args...);
    if (error != cudaSuccess)
        return status_fail(ST_BAD_DEVICE, file, line, NULL, -1, -1,
                           "%s: %u x %u blocks of %u threads, %zu bytes shared: CUDA error %d, %s",
                           name, grid.x, grid.y, block.x * block.y, shared, (int)error,
                           cudaGetErrorString(error));
    return ST_OK;
}

/* A kernel with several template arguments must be put in brackets: (kernel<8, true>). */
#define LAUNCH(s, kernel, grid, block, shared, ...)                                                \
    launch(__FILE__, __LINE__, #kernel, s, kernel, grid, block, shared, __VA_ARGS__)

/* Needed before a launch with more than 48 KB of dynamic shared memory; legal while a step is
 * captured. */
template <class... P> static status allow_shared(void (*kernel)(P...), size_t bytes)
{
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
             ST_BAD_DEVICE, "shared memory of a kernel");
    return ST_OK;
}

/* ---- device ---- */

/* For conditions that only a mistake in this program can break, such as an index that was not
 * checked. The kernel stops, the stream's next wait answers BAD_DEVICE, and the GPU is lost to this
 * process. */
#ifdef __CUDACC__
#define DEVICE_CHECK(condition) assert(condition)
#else
#define DEVICE_CHECK(condition) ((condition) ? (void)0 : simt_stop(#condition, __FILE__, __LINE__))
#endif

/* The block's dynamic shared memory as bytes, aligned to 16. The launch says how many there are. */
#ifdef __CUDACC__
#define SHARED_BYTES(name) extern __shared__ __align__(16) unsigned char name[]
#else
#define SHARED_BYTES(name) unsigned char *const name = (unsigned char *)simt_shared()
#endif

static __device__ __forceinline__ float to_float(bf16 x)
{
    return __bfloat162float(x);
}

static __device__ __forceinline__ bf16 to_bf16(float x)
{
    return __float2bfloat16_rn(x);
}

/* 2^x in one instruction, accurate to 2 units in the last place; results below 2^-126 become 0. */
static __device__ __forceinline__ float exp2_fast(float x)
{
#ifdef __CUDACC__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return simt_ex2(x);
#endif
}

static const float LOG2E = 1.44269504088896340736f;

static __device__ __forceinline__ unsigned pack2(float low, float high)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    unsigned bits;
    memcpy(&bits, &pair, sizeof bits);
    return bits;
}

/* A bf16 is the upper half of its float. */
static __device__ __forceinline__ void unpack8(float (&out)[VECTOR], uint4 bits)
{
    const unsigned w[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out[2 * i] = __uint_as_float(w[i] << 16);
        out[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
    }
}

static __device__ __forceinline__ uint4 pack8(const float (&in)[VECTOR])
{
    return make_uint4(pack2(in[0], in[1]), pack2(in[2], in[3]), pack2(in[4], in[5]),
                      pack2(in[6], in[7]));
}

/* at must be aligned to 16 bytes. */
static __device__ __forceinline__ void load_vector(float (&out)[VECTOR], const bf16 *at)
{
    unpack8(out, *(const uint4 *)at);
}

static __device__ __forceinline__ void store_vector(bf16 *at, const float (&in)[VECTOR])
{
    *(uint4 *)at = pack8(in);
}

/* Load and store WIDTH neighbouring elements at once; `at` must be aligned to them. WIDTH is
 * VECTOR, or 4 for rows of such lengths, or 1 for all others. */
template <int WIDTH>
static __device__ __forceinline__ void load(float (&out)[WIDTH], const bf16 *at)
{
    if constexpr (WIDTH == VECTOR) {
        load_vector(out, at);
    } else if constexpr (WIDTH == 4) {
        uint2 bits = *(const uint2 *)at;
        out[0] = __uint_as_float(bits.x << 16);
        out[1] = __uint_as_float(bits.x & 0xffff0000u);
        out[2] = __uint_as_float(bits.y << 16);
        out[3] = __uint_as_float(bits.y & 0xffff0000u);
    } else {
        static_assert(WIDTH == 1, "widths are 8, 4 and 1");
        out[0] = to_float(at[0]);
    }
}

template <int WIDTH>
static __device__ __forceinline__ void store(bf16 *at, const float (&in)[WIDTH])
{
    if constexpr (WIDTH == VECTOR)
        store_vector(at, in);
    else if constexpr (WIDTH == 4)
        *(uint2 *)at = make_uint2(pack2(in[0], in[1]), pack2(in[2], in[3]));
    else
        at[0] = to_bf16(in[0]);
}

template <int WIDTH>
static __device__ __forceinline__ void load(float (&out)[WIDTH], const float *at)
{
    if constexpr (WIDTH >= 4) {
#pragma unroll
        for (int i = 0; i < WIDTH; i += 4) {
            float4 value = *(const float4 *)(at + i);
            out[i] = value.x;
            out[i + 1] = value.y;
            out[i + 2] = value.z;
            out[i + 3] = value.w;
        }
    } else {
        out[0] = at[0];
    }
}

template <int WIDTH>
static __device__ __forceinline__ void store(float *at, const float (&in)[WIDTH])
{
    if constexpr (WIDTH >= 4) {
#pragma unroll
        for (int i = 0; i < WIDTH; i += 4)
            *(float4 *)(at + i) = make_float4(in[i], in[i + 1], in[i + 2], in[i + 3]);
    } else {
        at[0] = in[0];
    }
}

/* The sum over a warp. Every lane gets it, added in the same order: lanes that differ in bit 4
 * first. */
static __device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}

static __device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}

/* The sum over a one-dimensional block of WARPS full warps. Every thread must call it and gets the
 * sum. It may be called again at once, since `partial` is used only between barriers. */
template <int WARPS> static __device__ __forceinline__ float block_sum(float x)
{
    __shared__ float partial[WARPS];
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    x = warp_sum(x);
    __syncthreads();
    if (lane == 0)
        partial[warp] = x;
    __syncthreads();
    return warp_sum(lane < WARPS ? partial[lane] : 0);
}

#endif
