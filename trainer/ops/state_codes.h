/* SPDX-License-Identifier: Apache-2.0 */
/* state_codes.h: AdamW's moments in 8 bits (optim_tensor), and rounding to bf16 at random. Both are
 * the same functions on the CPU and on a GPU, and give the same bits.
 *
 * A block is STATE_BLOCK neighbouring elements of a tensor. It has one float32 scale, the largest
 * magnitude in it, and a code of 8 bits for each element's share of the scale. A code is the upper
 * part of a float: 3 bits of mantissa, below as many bits of exponent as are left.
 *
 *   first moment    1 bit of sign, 4 of exponent    codes 1 to 127: magnitudes 1.25 * 2^-16 to 1
 *   second moment   no sign, 5 bits of exponent     codes 1 to 255: 1.25 * 2^-32 to 1
 *
 * Code 0 is 0. A share is rounded to the nearest of these, but a second moment above 0 never
 * becomes 0: an update divides by its root. The root of the second moment so reaches as far down
 * as the first moment.
 *
 * The blocks are those of Dettmers et al. 2022 (arXiv:2110.02861). Their dynamic map has 1/128 of
 * the largest value as its step near 1 and a coarse one far below; it was measured beside this one
 * (tests/bench/state_maps). */
#ifndef TESSERA_TRAINER_OPS_STATE_CODES_H
#define TESSERA_TRAINER_OPS_STATE_CODES_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define STATE_FN static __host__ __device__ __forceinline__
#else
#define STATE_FN static inline
#endif

enum {
    STATE_BLOCK = 256,     /* elements that share a scale */
    STATE_DROPPED = 20,    /* bits of a float's 23 bits of mantissa that a code lacks */
    STATE_ONE = 127 * 8,   /* the upper part of 1.0 */
    STATE_FIRST_TOP = 127, /* the codes of 1.0 */
    STATE_SECOND_TOP = 255,
    STATE_SIGN = 128 /* the bit of a negative first moment */
};

STATE_FN uint32_t state_float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

STATE_FN float state_bits_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The scale of a block whose largest magnitude is `most`. It is finite, so that a square that
 * overflowed does not make every later value of its block NaN. */
STATE_FN float state_scale(float most)
{
    const float largest = 3.40282347e+38f;
    return most < largest ? most : largest;
}

/* The code of a share of the scale that is at least 0. `below` is the code of a share that is not 0
 * and too small for code 1. */
STATE_FN uint32_t state_share_code(float share, uint32_t top, uint32_t below)
{
    const uint32_t half = UINT32_C(1) << (STATE_DROPPED - 1);
    const int32_t code =
        (int32_t)((state_float_bits(share) + half) >> STATE_DROPPED) - (STATE_ONE - (int32_t)top);
    if (code < 1)
        return share > 0 ? below : 0;
    return (uint32_t)code < top ? (uint32_t)code : top;
}

STATE_FN float state_share(uint32_t code, uint32_t top)
{
    return code ? state_bits_float((code + STATE_ONE - top) << STATE_DROPPED) : 0;
}

/* `scale` is the block's; if it is 0, so is x. */
STATE_FN uint8_t state_first_code(float x, float scale)
{
    const float smallest = 0x1.4p-16f; /* the share of code 1 */
    const float share = scale > 0 ? (x < 0 ? -x : x) / scale : 0;
    const uint32_t code = state_share_code(share, STATE_FIRST_TOP, share >= smallest / 2);
    return (uint8_t)(code | (x < 0 && code ? STATE_SIGN : 0));
}

STATE_FN float state_first_value(uint8_t code, float scale)
{
    const float share = state_share(code & (STATE_SIGN - 1), STATE_FIRST_TOP) * scale;
    return code & STATE_SIGN ? -share : share;
}

STATE_FN uint8_t state_second_code(float x, float scale)
{
    return (uint8_t)state_share_code(scale > 0 ? x / scale : 0, STATE_SECOND_TOP, 1);
}

STATE_FN float state_second_value(uint8_t code, float scale)
{
    return state_share(code, STATE_SECOND_TOP) * scale;
}

/* Writes the codes of a block of `count` numbers and returns its scale. */
STATE_FN float state_encode_block(const float *from, int count, bool second, uint8_t *codes)
{
    float most = 0;
    for (int i = 0; i < count; i++) {
        const float size = from[i] < 0 ? -from[i] : from[i];
        most = size > most ? size : most;
    }
    const float scale = state_scale(most);
    for (int i = 0; i < count; i++)
        codes[i] = second ? state_second_code(from[i], scale) : state_first_code(from[i], scale);
    return scale;
}

/* The bf16 number below or above x in magnitude, as the upper half of a float. `random` is uniform
 * in [0, 65536), and the chance of the upper one is the place of x between the two, so the result
 * is x on average. Infinite and NaN stay what they are. */
STATE_FN uint16_t state_round_randomly(float x, uint32_t random)
{
    const uint32_t bits = state_float_bits(x);
    if ((bits & 0x7f800000u) == 0x7f800000u)
        return (uint16_t)(bits >> 16 | (bits & 0xffffu ? 0x40u : 0));
    return (uint16_t)((bits + random) >> 16);
}

/* The nearest bf16 number, the even one on ties, for an x that is finite. */
STATE_FN uint16_t state_round_nearest(float x)
{
    const uint32_t bits = state_float_bits(x);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

#endif
