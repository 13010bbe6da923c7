/* SPDX-License-Identifier: Apache-2.0 */
/* attention_pack.h: prepares on the device what cuDNN needs besides cu: lengths, first elements,
 * and zeros in the rows after the last segment. It also copies columns of some heads out of an
 * array of rows. Used only inside ops/cuda. */
#ifndef TESSERA_TRAINER_OPS_CUDA_ATTENTION_PACK_H
#define TESSERA_TRAINER_OPS_CUDA_ATTENTION_PACK_H

#include "trainer/device/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { PACK_FIRSTS = 5, PACK_TAILS = 3 };

typedef struct attention_pack_args {
    int64_t segments, tokens;
    int64_t filled;              /* how many segments cu has; those after them are empty */
    const int32_t *cu;           /* [filled + 1] */
    int32_t *length;             /* [segments], written */
    int64_t *first[PACK_FIRSTS]; /* [segments + 1], written: cu * stride */
    int64_t stride[PACK_FIRSTS];
    /* Arrays, if any, whose rows [cu[filled], tokens) are set to 0: bf16 arrays whose width is a
     * multiple of 8 and that are aligned to 16 bytes, and one f32 array. */
    void *tail[PACK_TAILS];
    int64_t tail_stride[PACK_TAILS], tail_width[PACK_TAILS]; /* elements */
    float *tail_f32;                                         /* [tokens, f32_width], or NULL */
    int64_t f32_width;
} attention_pack_args;

WARN_UNUSED status cuda_attention_pack(stream *stream, const attention_pack_args *args);

/* to[r][0, width) = from[r][0, width) for every row r, f32. Both arrays have a stride in elements;
 * what comes after `width` in a row of `to` stays as it is. */
typedef struct attention_columns_args {
    int64_t rows, width, from_stride, to_stride;
    const float *from;
    float *to;
} attention_columns_args;

WARN_UNUSED status cuda_attention_columns(stream *stream, const attention_columns_args *args);

#ifdef __cplusplus
}
#endif

#endif
