/* convert.c: conversions of convert.h. F16 is IEEE 754 binary16; BF16 is the upper half of a
 * binary32. */
#include "trainer/model/convert.h"

#include <math.h>
#include <string.h>

#include "common/base/bf16.h"

bool convert_known(st_dtype d)
{
    return d == DT_F64 || d == DT_F32 || d == DT_F16 || d == DT_BF16;
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

static uint16_t double_to_f16(double d)
{
    uint16_t sign = signbit(d) ? 0x8000 : 0;
    double size = fabs(d);
    if (isnan(d))
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

void convert_to_double(double *to, const void *from, st_dtype from_dtype, int64_t n)
{
    const char *p = from;
    size_t size = st_dtype_size(from_dtype);
    for (int64_t i = 0; i < n; i++, p += size) {
        float f;
        uint16_t half;
        switch (from_dtype) {
        case DT_F64:
            memcpy(&to[i], p, sizeof to[i]);
            break;
        case DT_F32:
            memcpy(&f, p, sizeof f);
            to[i] = f;
            break;
        case DT_F16:
            memcpy(&half, p, sizeof half);
            to[i] = f16_to_double(half);
            break;
        default:
            memcpy(&half, p, sizeof half);
            to[i] = bf16_to_float(half);
        }
    }
}

/* Rounds to a float with an odd last bit unless it is exact. Rounding that to BF16 gives the same
 * as rounding d at once: it cannot land on a tie that d itself is not on. */
static float double_to_odd_float(double d)
{
    float f = (float)d;
    if (isnan(d) || isinf(f) || (double)f == d)
        return f;
    if (fabs((double)f) > fabs(d)) /* it was rounded away from zero: undo that */
        f = nextafterf(f, 0);
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    bits |= 1;
    memcpy(&f, &bits, sizeof f);
    return f;
}

void convert_from_double(void *to, st_dtype to_dtype, const double *from, int64_t n)
{
    char *p = to;
    size_t size = st_dtype_size(to_dtype);
    for (int64_t i = 0; i < n; i++, p += size) {
        float f = (float)from[i];
        uint16_t half;
        switch (to_dtype) {
        case DT_F64:
            memcpy(p, &from[i], sizeof from[i]);
            break;
        case DT_F32:
            memcpy(p, &f, sizeof f);
            break;
        case DT_F16:
            half = double_to_f16(from[i]);
            memcpy(p, &half, sizeof half);
            break;
        default:
            half = bf16_from_float(double_to_odd_float(from[i]));
            memcpy(p, &half, sizeof half);
        }
    }
}
