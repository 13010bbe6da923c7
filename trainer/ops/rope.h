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
#ifndef TESSERA_OPS_ROPE_H
#define TESSERA_OPS_ROPE_H

#include <stdbool.h>

#include "trainer/device/backend.h"

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
