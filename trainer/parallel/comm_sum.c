#include "trainer/parallel/comm_sum.h"

#include <math.h>
#include <string.h>

/* One element after the other: what into held is read before it is written. */
#define REDUCE(type)                                                                               \
    do {                                                                                           \
        type *to = into;                                                                           \
        for (int64_t i = 0; i < count; i++) {                                                      \
            type sum = ((const type *)from[0])[i];                                                 \
            for (int r = 1; r < n; r++) {                                                          \
                type x = ((const type *)from[r])[i];                                               \
                if (reduction == COMM_SUM)                                                         \
                    sum = (type)(sum + x);                                                         \
                else if (x > sum || x != x)                                                        \
                    sum = x; /* a NaN stays */                                                     \
            }                                                                                      \
            to[i] = sum;                                                                           \
        }                                                                                          \
        return ST_OK;                                                                              \
    } while (0)

static float widen(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint16_t narrow(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (isnan(f))
        return (uint16_t)(bits >> 16 | 0x0040u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

static status reduce_bf16(uint16_t *into, const void *const *from, int n, int64_t count,
                          comm_reduction reduction)
{
    for (int64_t i = 0; i < count; i++) {
        float sum = widen(((const uint16_t *)from[0])[i]);
        for (int r = 1; r < n; r++) {
            float x = widen(((const uint16_t *)from[r])[i]);
            if (reduction == COMM_SUM)
                sum += x;
            else if (x > sum || isnan(x))
                sum = x;
        }
        into[i] = narrow(sum);
    }
    return ST_OK;
}

status comm_sum(void *into, const void *const *from, int n, int64_t count, st_dtype dtype,
                comm_reduction reduction)
{
    switch (dtype) {
    case DT_F32:
        REDUCE(float);
    case DT_F64:
        REDUCE(double);
    case DT_I32:
        REDUCE(int32_t);
    case DT_I64:
        REDUCE(int64_t);
    case DT_U8:
        REDUCE(uint8_t);
    case DT_BF16:
        return reduce_bf16(into, from, n, count, reduction);
    default:
        return FAIL(ST_INTERNAL, "no sums over ranks in dtype %d", (int)dtype);
    }
}
