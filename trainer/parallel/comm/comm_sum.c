/* SPDX-License-Identifier: Apache-2.0 */
/* comm_sum.c: implements comm_sum.h. It takes one element after the other over all ranks, so that
 * the order of a sum is that of the ranks and `into` may be one of the sources. */
#include "trainer/parallel/comm/comm_sum.h"

#include <math.h>

#include "common/base/bf16.h"

/* The body of comm_sum for one type. */
#define REDUCE(type)                                                                               \
    do {                                                                                           \
        type *to = into;                                                                           \
        for (int64_t i = 0; i < count; i++) {                                                      \
            type sum = ((const type *)from[0])[i];                                                 \
            for (int r = 1; r < how_many; r++) {                                                   \
                type value = ((const type *)from[r])[i];                                           \
                if (reduction == COMM_SUM)                                                         \
                    sum = (type)(sum + value);                                                     \
                else if (value > sum || value != value)                                            \
                    sum = value; /* x != x: a NaN is kept */                                       \
            }                                                                                      \
            to[i] = sum;                                                                           \
        }                                                                                          \
        return ST_OK;                                                                              \
    } while (0)

static status reduce_bf16(uint16_t *into, const void *const *from, int how_many, int64_t count,
                          comm_reduction reduction)
{
    for (int64_t i = 0; i < count; i++) {
        float sum = bf16_to_float(((const uint16_t *)from[0])[i]);
        for (int j = 1; j < how_many; j++) {
            float value = bf16_to_float(((const uint16_t *)from[j])[i]);
            if (reduction == COMM_SUM)
                sum += value;
            else if (value > sum || isnan(value))
                sum = value;
        }
        into[i] = bf16_from_float(sum);
    }
    return ST_OK;
}

status comm_sum(void *into, const void *const *from, int how_many, int64_t count, st_dtype dtype,
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
        return reduce_bf16(into, from, how_many, count, reduction);
    default:
        return FAIL(ST_INTERNAL, "values of dtype %d cannot be summed over ranks", (int)dtype);
    }
}
