/* rope.h: rotary embedding: angle tables, and the rotation both towers share.
 *
 * rope_text:   table[t, j] = angle of frequency j for token t, interleaved M-RoPE (spec 4.3):
 *              stream H if j%3==1 and j < 3*section[1]; W if j%3==2 and j < 3*section[2]; else T.
 *              positions [3, T] int32; cos, sin [T, head_dim/2] acc written.
 * rope_vision: row_col [S, 2] int32 patch coordinates; angle = [row*w_0.., col*w_0..], w_k =
 *              theta^(-2k/(d/2)), d/2 angles: row first (spec 3.4); cos, sin [S, d/2] acc written.
 * rope_apply:  x [rows, heads, head_dim] act with token stride x_stride (elements), in place:
 *              x_j' = x_j c_j - x_{j+h} s_j, x_{j+h}' = x_{j+h} c_j + x_j s_j, h = head_dim/2.
 *              inverse = rotate by the negative angle: the backward. */
#ifndef TESSERA_TRAINER_OPS_ROPE_H
#define TESSERA_TRAINER_OPS_ROPE_H

#include <math.h>
#include <stdbool.h>

#include "trainer/device/backend.h"

enum { ROPE_HALF_DIM_MAX = 512 };

/* head_dim must be a multiple of 2 parts: one angle table, or a row's and a column's. */
WARN_UNUSED static inline status rope_half_dim(int64_t head_dim, int64_t parts, int64_t *out_half)
{
    if (head_dim <= 0 || head_dim % (2 * parts) != 0 || head_dim / 2 > ROPE_HALF_DIM_MAX)
        return FAIL(ST_BAD_INPUT, "rope: head_dim %lld must be a multiple of %lld up to %d",
                    (long long)head_dim, (long long)(2 * parts), 2 * ROPE_HALF_DIM_MAX);
    *out_half = head_dim / 2;
    return ST_OK;
}

/* theta^(-numerator / denominator), rounded where the published model rounds, in float32 whatever
 * the model's dtype: the exponent, the power, its reciprocal. At position p an angle would else be
 * off by p times a unit in the last place or more. The power is rounded correctly here; torch's own
 * is off by a unit for one of 64 frequencies. */
static inline float rope_frequency(double theta, int64_t numerator, int64_t denominator)
{
    const float exponent = (float)numerator / (float)denominator;
    return 1.0f / (float)pow((float)theta, (double)exponent);
}

typedef struct rope_text_args {
    int64_t tokens, head_dim;
    double theta;
    int64_t section[3];
    const int32_t *positions; /* [3, tokens] */
    void *cos, *sin;
} rope_text_args;

typedef struct rope_vision_args {
    int64_t patches, head_dim;
    double theta;           /* 10000 */
    const int32_t *row_col; /* [S, 2] */
    void *cos, *sin;
} rope_vision_args;

typedef struct rope_apply_args {
    int64_t rows, heads, head_dim, x_stride;
    const void *cos, *sin; /* [rows, head_dim/2] acc */
    void *x;
    bool inverse;
} rope_apply_args;

#endif
