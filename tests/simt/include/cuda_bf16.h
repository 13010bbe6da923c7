/* cuda_bf16.h: takes the place of the toolkit's header of this name on the host. A bf16 is the
 * upper half of a float, rounded to nearest even. */
#ifndef TESSERA_TESTS_SIMT_INCLUDE_CUDA_BF16_H
#define TESSERA_TESTS_SIMT_INCLUDE_CUDA_BF16_H

#include "cuda_runtime.h"

struct __nv_bfloat16 {
    unsigned short bits;
};

struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

static inline float __bfloat162float(__nv_bfloat16 b)
{
    return __uint_as_float((unsigned)b.bits << 16);
}

static inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
    unsigned u = __float_as_uint(x);
    if (isnan(x))
        return __nv_bfloat16{0x7fff}; /* what the hardware gives */
    return __nv_bfloat16{(unsigned short)((u + 0x7fffu + (u >> 16 & 1)) >> 16)};
}

static inline __nv_bfloat16 __float2bfloat16(float x)
{
    return __float2bfloat16_rn(x);
}

static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y)
{
    return __nv_bfloat162{__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}

static inline float2 __bfloat1622float2(__nv_bfloat162 b)
{
    return make_float2(__bfloat162float(b.x), __bfloat162float(b.y));
}

#endif
