/* SPDX-License-Identifier: Apache-2.0 */
/* convert.c: conversions of convert.h. F16 is IEEE 754 binary16; BF16 is the upper half of a
 * binary32. */
#include "trainer/model/dims/convert.h"

#include <math.h>
#include <string.h>

#include "common/base/bf16.h"

bool convert_known(st_dtype dtype)
{
    return dtype == DT_F64 || dtype == DT_F32 || dtype == DT_F16 || dtype == DT_BF16;
}

static double f16_to_double(uint16_t half)
{
    int exponent = half >> 10 & 0x1f;
    double fraction = half & 0x3ff;
    double value;
    if (exponent == 0x1f)
        value = fraction != 0 ? NAN : INFINITY;
    else if (exponent == 0)
        value = ldexp(fraction, -24);
    else
        value = ldexp(1024 + fraction, exponent - 25);
    return half & 0x8000 ? -value : value;
}

static uint16_t double_to_f16(double value)
{
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    double size = fabs(value);
    if (isnan(value))
        return sign | 0x7e00;
    if (size >= 65520) /* half a step above the largest finite number, so it rounds to infinity */
        return sign | 0x7c00;
    int exponent = 0;
    frexp(size, &exponent);
    int step = exponent - 11 > -24 ? exponent - 11 : -24; /* log2 of the unit in the last place */
    double places = nearbyint(ldexp(size, -step));        /* at most 2048, ties to even */
    if (places >= 2048) {
        places /= 2;
        step++;
    }
    if (places < 1024) /* subnormal or zero: step is -24 */
        return sign | (uint16_t)places;
    return sign | (uint16_t)((step + 25) << 10 | ((int)places - 1024));
}

void convert_to_double(double *to, const void *from, st_dtype from_dtype, int64_t count)
{
    const char *at = from;
    size_t size = st_dtype_size(from_dtype);
    for (int64_t i = 0; i < count; i++, at += size) {
        float value;
        uint16_t half;
        switch (from_dtype) {
        case DT_F64:
            memcpy(&to[i], at, sizeof to[i]);
            break;
        case DT_F32:
            memcpy(&value, at, sizeof value);
            to[i] = value;
            break;
        case DT_F16:
            memcpy(&half, at, sizeof half);
            to[i] = f16_to_double(half);
            break;
        default:
            memcpy(&half, at, sizeof half);
            to[i] = bf16_to_float(half);
        }
    }
}

/* Rounds to a float with an odd last bit unless it is exact. Rounding that to BF16 gives the same
 * as rounding `value` at once: it cannot land on a tie that `value` itself is not on. */
static float double_to_odd_float(double value)
{
    float nearest = (float)value;
    if (isnan(value) || isinf(nearest) || (double)nearest == value)
        return nearest;
    if (fabs((double)nearest) > fabs(value)) /* it was rounded away from zero: undo that */
        nearest = nextafterf(nearest, 0);
    uint32_t bits;
    memcpy(&bits, &nearest, sizeof bits);
    bits |= 1;
    memcpy(&nearest, &bits, sizeof nearest);
    return nearest;
}

void convert_from_double(void *to, st_dtype to_dtype, const double *from, int64_t count)
{
    char *at = to;
    size_t size = st_dtype_size(to_dtype);
    for (int64_t i = 0; i < count; i++, at += size) {
        float value = (float)from[i];
        uint16_t half;
        switch (to_dtype) {
        case DT_F64:
            memcpy(at, &from[i], sizeof from[i]);
            break;
        case DT_F32:
            memcpy(at, &value, sizeof value);
            break;
        case DT_F16:
            half = double_to_f16(from[i]);
            memcpy(at, &half, sizeof half);
            break;
        default:
            half = bf16_from_float(double_to_odd_float(from[i]));
            memcpy(at, &half, sizeof half);
        }
    }
}
