/* SPDX-License-Identifier: Apache-2.0 */
/* rope.h: rotary position embedding (Su et al. 2021, arXiv:2104.09864): tables of angles, and the
 * rotation that both towers share. In transformers: modeling_qwen3_vl_moe.py,
 * Qwen3VLMoeTextRotaryEmbedding and Qwen3VLMoeVisionRotaryEmbedding.
 *
 * rope_text: the angles of interleaved M-RoPE (apply_interleaved_mrope). Angle j of token t is
 * positions[axis, t] * theta^(-2j / head_dim); the axis is H (height) if j % 3 == 1 and j < 3
 * section[1], W (width) if j % 3 == 2 and j < 3 section[2], else T (time).
 *
 * rope_vision: the angles of the vision tower. A patch at (row, column) has head_dim/2 angles:
 * first row * w_k for k < head_dim/4, then column * w_k, with w_k = theta^(-2k / (head_dim/2)).
 *
 * rope_apply: rotates in place, with h = head_dim/2, c and s the cosine and sine of angle j:
 *   x'[j]     = x[j] c - x[j + h] s
 *   x'[j + h] = x[j + h] c + x[j] s */
#ifndef TESSERA_TRAINER_OPS_ROPE_H
#define TESSERA_TRAINER_OPS_ROPE_H

#include <math.h>
#include <stdbool.h>

#include "trainer/device/backend.h"

enum { ROPE_HALF_DIM_MAX = 512 };

/* Gives head_dim / 2, the number of angles of a token. `parts` is 1 for one table, 2 for a row's
 * and a column's angles. BAD_INPUT: a head_dim that is not a multiple of 2 parts, or is larger than
 * 2 ROPE_HALF_DIM_MAX. */
WARN_UNUSED static inline status rope_half_dim(int64_t head_dim, int64_t parts, int64_t *out_half)
{
    if (head_dim <= 0 || head_dim % (2 * parts) != 0 || head_dim / 2 > ROPE_HALF_DIM_MAX)
        return FAIL(ST_BAD_INPUT,
                    "rope: head_dim is %lld; it must be a multiple of %lld and at most %d",
                    (long long)head_dim, (long long)(2 * parts), 2 * ROPE_HALF_DIM_MAX);
    *out_half = head_dim / 2;
    return ST_OK;
}

/* theta^(-numerator / denominator). It is rounded where the published model rounds, in float32
 * whatever the model's dtype: the exponent, the power, and its reciprocal. Otherwise an angle at
 * position p would be off by p units in the last place or more. The power is rounded correctly
 * here; torch's own is off by one unit for one of 64 frequencies. */
static inline float rope_frequency(double theta, int64_t numerator, int64_t denominator)
{
    const float exponent = (float)numerator / (float)denominator;
    return 1.0f / (float)pow((float)theta, (double)exponent);
}

/* cos and sin [tokens, head_dim/2] acc are written. */
typedef struct rope_text_args {
    int64_t tokens, head_dim;
    double theta;
    int64_t section[3];       /* angles of T, H and W */
    const int32_t *positions; /* [3, tokens]: T, H and W of each token */
    void *cos, *sin;
} rope_text_args;

/* cos and sin [patches, head_dim/2] acc are written. */
typedef struct rope_vision_args {
    int64_t patches, head_dim;
    double theta;           /* 10000 in the published model */
    const int32_t *row_col; /* [patches, 2]: row and column of each patch */
    void *cos, *sin;
} rope_vision_args;

/* x [rows, heads, head_dim] act, changed in place; x_stride is the distance from one row to the
 * next in elements. `inverse` rotates by the negative angle, which is the backward. */
typedef struct rope_apply_args {
    int64_t rows, heads, head_dim, x_stride;
    const void *cos, *sin; /* [rows, head_dim/2] acc */
    void *x;
    bool inverse;
} rope_apply_args;

#endif
