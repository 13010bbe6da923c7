/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_bf16.h: takes the place of the toolkit's header of this name on the host. A bf16 is the
 * upper half of a float, rounded to nearest even. Letters: x, y the members of CUDA's pairs, or the
 * numbers to round. */
#ifndef TESSERA_TESTS_SIMT_INCLUDE_CUDA_BF16_H
#define TESSERA_TESTS_SIMT_INCLUDE_CUDA_BF16_H

#include "cuda_runtime.h"

struct __nv_bfloat16 {
    unsigned short bits;
};

struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

static inline float __bfloat162float(__nv_bfloat16 narrow)
{
    return __uint_as_float((unsigned)narrow.bits << 16);
}

static inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
    unsigned bits = __float_as_uint(x);
    if (isnan(x))
        return __nv_bfloat16{0x7fff}; /* what the hardware gives */
    return __nv_bfloat16{(unsigned short)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16)};
}

static inline __nv_bfloat16 __float2bfloat16(float x)
{
    return __float2bfloat16_rn(x);
}

static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y)
{
    return __nv_bfloat162{__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}

static inline float2 __bfloat1622float2(__nv_bfloat162 narrow)
{
    return make_float2(__bfloat162float(narrow.x), __bfloat162float(narrow.y));
}

#endif
