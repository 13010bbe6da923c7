/* SPDX-License-Identifier: Apache-2.0 */
/* simt_fast.h: CUDA's functions that do not round as a C library does (CUDA C++ programming guide,
 * "Mathematical Functions"; PTX ISA 9.7.3). Each errs by up to as many units in the last place as
 * it may on a GPU. How far a result is off depends on the argument alone, so equal arguments give
 * equal bits. What a GPU gets exactly stays exact: results for 0, zeros and infinities, quotients
 * by powers of two, and the ends of erff. Letters: x an argument. */
#ifndef TESSERA_TESTS_SIMT_INCLUDE_SIMT_FAST_H
#define TESSERA_TESTS_SIMT_INCLUDE_SIMT_FAST_H

#include <float.h>
#include <math.h>

/* `exact`, the result for the argument x, off by up to `most` units in the last place. */
static inline float simt_off(float exact, float x, unsigned most)
{
    if (x == 0 || !(fabsf(exact) >= FLT_MIN && fabsf(exact) < FLT_MAX / 2))
        return exact;
    unsigned mixed = __float_as_uint(x) * 0x9e3779b1u;
    mixed ^= mixed >> 15;
    return __uint_as_float(__float_as_uint(exact) + mixed % (2 * most + 1) - most);
}

/* ex2.approx.ftz.f32: numbers below 2^-126 are 0, as argument and as result. */
static inline float simt_ex2(float x)
{
    x = fabsf(x) < FLT_MIN ? 0 : x;
    const float power = simt_off(exp2f(x), x, 2);
    return power < FLT_MIN ? 0 : power;
}

/* The product is rounded first, so the error grows with x. */
static inline float simt_expf(float x)
{
    return simt_off(exp2f(__fmul_rn(x, 1.44269504088896340736f)), x, 2);
}

/* Quotients by more than 2^126 are 0. */
static inline float __fdividef(float first, float second)
{
    const bool power_of_two = (__float_as_uint(second) & 0x7fffffu) == 0;
    if (fabsf(second) > 0x1p126f && !isinf(second))
        return first * (second > 0 ? 0.0f : -0.0f);
    return power_of_two ? first / second : simt_off(first / second, second, 2);
}

static inline float rsqrtf(float x)
{
    return simt_off(1 / sqrtf(x), x, 2);
}

#define SIMT_OFF(name, most)                                                                       \
    static inline float simt_##name(float x)                                                       \
    {                                                                                              \
        return simt_off(name(x), x, most);                                                         \
    }
SIMT_OFF(cosf, 2)
SIMT_OFF(sinf, 2)
SIMT_OFF(logf, 1)
SIMT_OFF(log2f, 1)
#undef SIMT_OFF

static inline float simt_erff(float x)
{
    const float exact = erff(x);
    return fabsf(exact) == 1 ? exact : simt_off(exact, x, 2);
}

/* The C library declares these under their own names. */
#define __expf(x) simt_expf(x)
#define cosf(x)   simt_cosf(x)
#define sinf(x)   simt_sinf(x)
#define erff(x)   simt_erff(x)
#define logf(x)   simt_logf(x)
#define log2f(x)  simt_log2f(x)

#endif
