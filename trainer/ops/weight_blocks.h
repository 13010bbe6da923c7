/* SPDX-License-Identifier: Apache-2.0 */
/* weight_blocks.h: frozen matrices in 8 or 4 bits, in blocks, and what expands them.
 *
 * A block is WEIGHT_BLOCK neighbouring elements of a row of a matrix; the last block of a row may
 * have fewer. In memory it is its scale, a float32, followed by the codes:
 *
 *   int8   68 bytes  a code is a signed byte c; the value is c * scale, scale = largest / 127
 *   nf4    36 bytes  a code is 4 bits, the first of a pair in the upper half of its byte; the value
 *                    is level[c] * scale, scale = largest
 *
 * where largest is the block's largest magnitude. Codes of elements that a short block lacks are
 * those of 0. The 16 levels of nf4 are the quantiles of a normal distribution of Dettmers et al.
 * 2023 (arXiv:2305.14314, appendix E); levels, nearest code and order of codes are those of
 * bitsandbytes. Encoding happens on the host alone (model/params/quantised.h), so every device has the
 * same codes, and a value is one product of floats, so it has the same bits too. */
#ifndef TESSERA_TRAINER_OPS_WEIGHT_BLOCKS_H
#define TESSERA_TRAINER_OPS_WEIGHT_BLOCKS_H

#include <stdint.h>

#include "trainer/device/backend.h"

#ifdef __CUDACC__
#define WEIGHT_FN static __host__ __device__ __forceinline__
#else
#define WEIGHT_FN static inline
#endif

typedef enum weight_form {
    WEIGHT_PLAIN, /* values in the type of activations: no blocks */
    WEIGHT_INT8,
    WEIGHT_NF4
} weight_form;

enum {
    WEIGHT_BLOCK = 64, /* elements */
    WEIGHT_SCALE = 4,  /* bytes of a block's scale */
    WEIGHT_LEVELS = 16
};

/* Bytes of a block; 0 for plain values. */
WEIGHT_FN int64_t weight_block_bytes(weight_form form)
{
    return form == WEIGHT_INT8  ? WEIGHT_SCALE + WEIGHT_BLOCK
           : form == WEIGHT_NF4 ? WEIGHT_SCALE + WEIGHT_BLOCK / 2
                                : 0;
}

/* Blocks of a row of n elements. */
WEIGHT_FN int64_t weight_row_blocks(int64_t n)
{
    return (n + WEIGHT_BLOCK - 1) / WEIGHT_BLOCK;
}

WEIGHT_FN float weight_level(int code)
{
    const float level[WEIGHT_LEVELS] = {-1.0f,
                                        -0.6961928009986877f,
                                        -0.5250730514526367f,
                                        -0.39491748809814453f,
                                        -0.28444138169288635f,
                                        -0.18477343022823334f,
                                        -0.09105003625154495f,
                                        0.0f,
                                        0.07958029955625534f,
                                        0.16093020141124725f,
                                        0.24611230194568634f,
                                        0.33791524171829224f,
                                        0.44070982933044434f,
                                        0.5626170039176941f,
                                        0.7229568362236023f,
                                        1.0f};
    return level[code];
}

/* y [rows, n] act = the values of blocks [rows, ceil(n / WEIGHT_BLOCK)], rounded once to act. form:
 * not WEIGHT_PLAIN. blocks: address divisible by 4. */
typedef struct dequantise_args {
    weight_form form;
    int64_t rows, n;
    const void *blocks;
    void *y;
} dequantise_args;

#endif
