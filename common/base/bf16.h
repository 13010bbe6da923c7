/* SPDX-License-Identifier: Apache-2.0 */
/* bf16.h: conversion between float and bfloat16 on the host. A bfloat16 is the upper 16 bits of an
 * IEEE 754 float: the same exponent, and 7 bits of mantissa. */
#ifndef TESSERA_COMMON_BASE_BF16_H
#define TESSERA_COMMON_BASE_BF16_H

#include <stdint.h>
#include <string.h>

static inline float bf16_to_float(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Rounds to the nearest bfloat16, ties to even. A NaN stays a NaN of the same sign, made quiet. */
static inline uint16_t bf16_from_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x0040u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

#endif
