/* attention_kernels.h: which kernels attention of a configuration will run with on a GPU, by the
 * rules of ops/attention_work.h and of trainer/ops/cuda: cuDNN's, or our own. */
#ifndef TESSERA_TRAINER_PLAN_ATTENTION_KERNELS_H
#define TESSERA_TRAINER_PLAN_ATTENTION_KERNELS_H

#include "common/conf/conf.h"
#include "trainer/parallel/layout.h"
#include "trainer/plan/rates.h"
#include "trainer/plan/row_work.h"

/* The rates of the kernels. Our own have one of text and one of frames, each for both passes. */
typedef struct attention_kernels {
    rate_key forward, backward;
} attention_kernels;

/* Rows of this kind in micro-batches of training.local_batch_size. sm: the GPU's compute
 * capability, times ten. deterministic: instead of training.deterministic. */
attention_kernels attention_kernels_text(const conf *options, int sm, const layout *degrees,
                                         const model_dims *dims, const row_kind *row,
                                         bool deterministic);
attention_kernels attention_kernels_vision(const conf *options, int sm, const model_dims *dims,
                                           const row_kind *row, bool deterministic);
/* "cuDNN's" or "our own"; cuDNN's have two kinds of backward pass. */
const char *attention_kernels_name(rate_key backward);

#endif
