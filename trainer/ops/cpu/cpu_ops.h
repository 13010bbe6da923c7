/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_ops.h: what the CPU ops share: their names, small arithmetic, and exponentials that compile
 * to vector code.
 *
 * The sources are compiled once per instruction set. CPU_VARIANT (base or avx2) keeps the function
 * names apart, and table.c gathers each set into a table. Most ops are a loop body over some of the
 * rows that is handed to cpu_run (device/cpu.h). No result may depend on how the rows are cut into
 * parts, so that the same input gives the same bits on 1 and on 64 threads. */
#ifndef TESSERA_TRAINER_OPS_CPU_OPS_H
#define TESSERA_TRAINER_OPS_CPU_OPS_H

#include <math.h>

#include "common/base/compare.h"
#include "trainer/device/cpu.h"
#include "trainer/device/real.h"
#include "trainer/ops/table.h"

#define CPU_PASTE_(name, variant) name##_##variant
#define CPU_PASTE(name, variant)  CPU_PASTE_(name, variant)
#define CPU_OP(name)              CPU_PASTE(cpu_##name, CPU_VARIANT)

#define OP(name) status CPU_OP(name)(stream * s, const struct name##_args *a);
#include "trainer/ops/ops.def"

#ifdef TESSERA_REAL_F64
#define REAL_SQRT sqrt
#define REAL_LOG  log
#define REAL_COS  cos
#define REAL_SIN  sin
#else
#define REAL_SQRT sqrtf
#define REAL_LOG  logf
#define REAL_COS  cosf
#define REAL_SIN  sinf
#endif

static inline int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

#ifdef TESSERA_REAL_F64
static inline real real_exp(real x)
{
    return exp(x);
}
#else
/* e^x in straight-line code, so that loops over it become vector code (loops over libm's expf do
 * not). With x = n ln2 + r and |r| <= ln2/2, e^r is its Taylor series to r^7/7!, whose remainder is
 * under 6e-9, and 2^n is put together from exponent bits. Letters: n, r as here; t, u as in
 * real_normal_cdf. The result is within 2 ulp of libm's; it is 0 below -87.3 (no subnormals) and
 * infinite above 88.72, and NaN stays NaN. */
static inline real real_exp(real x)
{
    const float lo = -87.33f, hi = 88.72f;
    const float shift = 12582912.0f;   /* 1.5 * 2^23: adding it rounds to an integer */
    const float ln2_high = 0x1.63p-1f; /* few bits: n * ln2_high is exact */
    const float ln2_low = (float)(0x1.62e42fefa39efp-1 - 0x1.63p-1);
    float clamped = x < lo ? lo : x;
    clamped = clamped > hi ? hi : clamped;
    union {
        float number;
        uint32_t bits;
    } n = {.number = clamped * 0x1.715476p+0f + shift}, power;
    float whole = n.number - shift;
    float r = (clamped - whole * ln2_high) - whole * ln2_low;
    float series = 1.0f / 5040;
    series = series * r + 1.0f / 720;
    series = series * r + 1.0f / 120;
    series = series * r + 1.0f / 24;
    series = series * r + 1.0f / 6;
    series = series * r + 0.5f;
    series = series * r * r + r + 1.0f;
    /* The low bits of n.number hold n. 2^128 is no float, so the power is applied in two halves. */
    power.bits = (n.bits + 126u) << 23;
    series = series * power.number * 2.0f;
    series = x < lo ? 0.0f : series;
    return x > hi ? HUGE_VALF : series;
}
#endif

#ifdef TESSERA_REAL_F64
static inline real real_normal_cdf(real x, real bell)
{
    (void)bell;
    return erfc(-x * 0.70710678118654752440) / 2;
}
#else
/* The normal distribution function (1 + erf(x / sqrt 2)) / 2, given bell = e^(-x^2 / 2), again in
 * straight-line code. The upper tail is bell t P(t) / 2 with t = 1 / (1 + |x| / (2 sqrt 2)). P is
 * our own Chebyshev fit of e^(u^2) erfc(u) / t for 0 <= u <= 9.6; it is off by 3e-9, and by 2.4e-7
 * with the rounding of floats. */
static inline real real_normal_cdf(real x, real bell)
{
    float u = x < 0 ? -x : x, t = 1 / (1 + u * 0.35355339f);
    float polynomial = 0.03480792059511257f;
    polynomial = polynomial * t - 0.18532100498274925f;
    polynomial = polynomial * t + 0.3664926310807376f;
    polynomial = polynomial * t - 0.26709985783116164f;
    polynomial = polynomial * t - 0.04355530224365512f;
    polynomial = polynomial * t + 0.04917846432590112f;
    polynomial = polynomial * t + 0.048983221156901444f;
    polynomial = polynomial * t + 0.1872627618677471f;
    polynomial = polynomial * t + 0.24488132731697973f;
    polynomial = polynomial * t + 0.28228264541020903f;
    polynomial = polynomial * t + 0.2820871965154224f;
    float tail = bell * t * polynomial / 2;
    return x < 0 ? tail : 1 - tail;
}
#endif

/* 1 / (1 + e^-x); it reaches 0 and 1 at the far ends. */
static inline real real_sigmoid(real x)
{
    return 1 / (1 + real_exp(-x));
}

/* y = silu(gate) * up, n elements. */
static inline void swiglu_row(real *y, const real *gate, const real *up, int64_t n)
{
#pragma omp simd
    for (int64_t j = 0; j < n; j++)
        y[j] = gate[j] * real_sigmoid(gate[j]) * up[j];
}

#endif
