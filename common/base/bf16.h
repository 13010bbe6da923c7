/* bf16.h: bfloat16 in the host's memory: the upper half of a float. */
#ifndef TESSERA_COMMON_BASE_BF16_H
#define TESSERA_COMMON_BASE_BF16_H

#include <stdint.h>
#include <string.h>

static inline float bf16_to_float(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* The nearest, ties to even; a NaN keeps its sign and is made quiet. */
static inline uint16_t bf16_from_float(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x0040u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

#endif
