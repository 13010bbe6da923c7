/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_runtime.h: takes the place of the toolkit's header of this name on the host (../simt.h). It
 * has the part of CUDA C++ and of the runtime that our .cu files use; what a new kernel needs is
 * added here. Letters: x, y, z the members of CUDA's vectors; T the type of a number. */
#ifndef TESSERA_TESTS_SIMT_INCLUDE_CUDA_RUNTIME_H
#define TESSERA_TESTS_SIMT_INCLUDE_CUDA_RUNTIME_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "tests/simt/simt.h"

/* ---- the language ---- */

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__    __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __constant__ static
#define __align__(n) alignas(n)
/* One block runs at a time, so its static shared memory can be the program's. */
#define __shared__ static

typedef simt_dim uint3;
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};
static const int warpSize = 32;

/* Vectors are aligned to their size, which UndefinedBehaviorSanitizer checks at every access. */
#define SIMT_VECTOR2(name, type)                                                                   \
    struct alignas(2 * sizeof(type)) name {                                                        \
        type x, y;                                                                                 \
    };                                                                                             \
    static inline name make_##name(type x, type y)                                                 \
    {                                                                                              \
        return name{x, y};                                                                         \
    }
#define SIMT_VECTOR4(name, type)                                                                   \
    struct alignas(4 * sizeof(type) > 16 ? 16 : 4 * sizeof(type)) name {                           \
        type x, y, z, w;                                                                           \
    };                                                                                             \
    static inline name make_##name(type x, type y, type z, type w)                                 \
    {                                                                                              \
        return name{x, y, z, w};                                                                   \
    }
SIMT_VECTOR2(float2, float)
SIMT_VECTOR4(float4, float)
SIMT_VECTOR2(double2, double)
SIMT_VECTOR2(int2, int)
SIMT_VECTOR4(int4, int)
SIMT_VECTOR2(uint2, unsigned)
SIMT_VECTOR4(uint4, unsigned)
SIMT_VECTOR4(uchar4, unsigned char)
#undef SIMT_VECTOR2
#undef SIMT_VECTOR4

/* ---- barriers and warps; FILE and LINE are the caller's ---- */

#define SIMT_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

static inline void __syncthreads(SIMT_HERE)
{
    simt_barrier(file, line);
}

static inline void __trap(SIMT_HERE)
{
    simt_trap(file, line);
}

static inline void __nanosleep(unsigned ns)
{
    simt_sleep(ns);
}

static inline void __syncwarp(unsigned mask = 0xffffffffu, SIMT_HERE)
{
    simt_warp(SIMT_SYNC, mask, 0, 0, 32, file, line);
}

template <class T>
static inline T simt_shuffle(int kind, unsigned mask, T value, unsigned operand, int width,
                             const char *file, int line)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = simt_warp(kind, mask, bits, operand, (unsigned)width, file, line);
    memcpy(&value, &bits, sizeof value);
    return value;
}

template <class T>
static inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32, SIMT_HERE)
{
    return simt_shuffle(SIMT_INDEX, mask, value, (unsigned)lane, width, file, line);
}

template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, SIMT_HERE)
{
    return simt_shuffle(SIMT_UP, mask, value, by, width, file, line);
}

template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, SIMT_HERE)
{
    return simt_shuffle(SIMT_DOWN, mask, value, by, width, file, line);
}

template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32, SIMT_HERE)
{
    return simt_shuffle(SIMT_XOR, mask, value, (unsigned)with, width, file, line);
}

static inline unsigned __ballot_sync(unsigned mask, int predicate, SIMT_HERE)
{
    return (unsigned)simt_warp(SIMT_BALLOT, mask, predicate != 0, 0, 32, file, line);
}

static inline int __any_sync(unsigned mask, int predicate, SIMT_HERE)
{
    return simt_warp(SIMT_BALLOT, mask, predicate != 0, 0, 32, file, line) != 0;
}

static inline int __all_sync(unsigned mask, int predicate, SIMT_HERE)
{
    return simt_warp(SIMT_BALLOT, mask, predicate == 0, 0, 32, file, line) == 0;
}

static inline int __reduce_add_sync(unsigned mask, int value, SIMT_HERE)
{
    return (int)simt_warp(SIMT_ADD, mask, (uint32_t)value, 0, 32, file, line);
}

static inline unsigned __reduce_add_sync(unsigned mask, unsigned value, SIMT_HERE)
{
    return (unsigned)simt_warp(SIMT_ADD, mask, value, 0, 32, file, line);
}

static inline int __reduce_min_sync(unsigned mask, int value, SIMT_HERE)
{
    return (int)simt_warp(SIMT_MIN_I32, mask, (uint32_t)value, 0, 32, file, line);
}

static inline int __reduce_max_sync(unsigned mask, int value, SIMT_HERE)
{
    return (int)simt_warp(SIMT_MAX_I32, mask, (uint32_t)value, 0, 32, file, line);
}

static inline unsigned __reduce_min_sync(unsigned mask, unsigned value, SIMT_HERE)
{
    return (unsigned)simt_warp(SIMT_MIN_U32, mask, value, 0, 32, file, line);
}

static inline unsigned __reduce_max_sync(unsigned mask, unsigned value, SIMT_HERE)
{
    return (unsigned)simt_warp(SIMT_MAX_U32, mask, value, 0, 32, file, line);
}

/* ---- arithmetic; what errs is in simt_fast.h ---- */

static inline float __uint_as_float(unsigned bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline unsigned __float_as_uint(float x)
{
    unsigned bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline int __float_as_int(float x)
{
    return (int)__float_as_uint(x);
}

static inline float __int_as_float(int bits)
{
    return __uint_as_float((unsigned)bits);
}

#define SIMT_UNARY(name, value)                                                                    \
    static inline float name(float x)                                                              \
    {                                                                                              \
        return value;                                                                              \
    }
SIMT_UNARY(__frcp_rn, 1 / x)
SIMT_UNARY(__fsqrt_rn, sqrtf(x))
#undef SIMT_UNARY

/* The compiler must not fuse these with what follows, nor share them with a product that it may
 * fuse; it cannot see through an empty statement that may have changed x. */
static inline float simt_rounded(float x)
{
    __asm__("" : "+m"(x));
    return x;
}

static inline float __fmul_rn(float first, float second)
{
    return simt_rounded(simt_rounded(first) * second);
}

static inline float __fadd_rn(float first, float second)
{
    return simt_rounded(simt_rounded(first) + second);
}

#include "simt_fast.h"

static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}

static inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}

static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

template <class T> static inline T min(T first, T second)
{
    return second < first ? second : first;
}

template <class T> static inline T max(T first, T second)
{
    return first < second ? second : first;
}

/* ---- memory; hints have no meaning here ---- */

#define SIMT_LOAD(name)                                                                            \
    template <class T> static inline T name(const T *at)                                           \
    {                                                                                              \
        return *at;                                                                                \
    }
#define SIMT_STORE(name)                                                                           \
    template <class T> static inline void name(T *at, T value)                                     \
    {                                                                                              \
        *at = value;                                                                               \
    }
SIMT_LOAD(__ldg)
SIMT_LOAD(__ldcs)
SIMT_LOAD(__ldcg)
SIMT_STORE(__stcs)
SIMT_STORE(__stcg)
#undef SIMT_LOAD
#undef SIMT_STORE

static inline void __threadfence(void)
{
}

static inline void __threadfence_system(void)
{
}

/* Fibers switch only at barriers, so a plain addition is atomic. It is for counters: our kernels do
 * not sum floats with atomics, because such sums have no fixed order. */
static inline int atomicAdd(int *at, int value)
{
    int old = *at;
    *at = old + value;
    return old;
}

static inline unsigned atomicAdd(unsigned *at, unsigned value)
{
    unsigned old = *at;
    *at = old + value;
    return old;
}

static inline int atomicMax(int *at, int value)
{
    int old = *at;
    *at = value > old ? value : old;
    return old;
}

static inline unsigned atomicOr(unsigned *at, unsigned value)
{
    unsigned old = *at;
    *at = old | value;
    return old;
}

/* ---- the part of the runtime that launchers call; queued work is done at once ---- */

extern "C" {
typedef enum cudaError { cudaSuccess = 0, cudaErrorLaunchFailure = 719 } cudaError_t;
typedef enum cudaMemcpyKind { cudaMemcpyDeviceToDevice = 3 } cudaMemcpyKind;
typedef enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8
} cudaFuncAttribute;
typedef struct CUstream_st *cudaStream_t;
}

/* Gives the harness's reason for a failed launch. */
static inline const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaSuccess ? "no error" : simt_error();
}

static inline cudaError_t cudaMemsetAsync(void *at, int value, size_t bytes, cudaStream_t)
{
    if (bytes)
        memset(at, value, bytes);
    return cudaSuccess;
}

static inline cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind,
                                          cudaStream_t)
{
    if (bytes)
        memmove(dst, src, bytes);
    return cudaSuccess;
}

typedef struct cudaLaunchAttribute cudaLaunchAttribute;
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};

template <class Kernel>
static inline cudaError_t cudaFuncSetAttribute(Kernel *, cudaFuncAttribute, int)
{
    return cudaSuccess;
}

/* Runs the kernel to its end before it returns. */
template <class... Wanted, class... Given>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config,
                                             void (*kernel)(Wanted...), Given... args)
{
    auto call = [&] { kernel(args...); };
    auto body = [](const void *context) { (*(const decltype(call) *)context)(); };
    simt_dim grid = {config->gridDim.x, config->gridDim.y, config->gridDim.z};
    simt_dim block = {config->blockDim.x, config->blockDim.y, config->blockDim.z};
    return simt_run(grid, block, config->dynamicSmemBytes, body, &call) ? cudaSuccess
                                                                        : cudaErrorLaunchFailure;
}

#endif
