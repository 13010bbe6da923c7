/* attention_kernels.h: which kernels attention of a configuration will run with on a GPU, by the
 * rules of ops/attention_work.h and of trainer/ops/cuda: cuDNN's, or our own. */
#ifndef TESSERA_TRAINER_PLAN_ATTENTION_KERNELS_H
#define TESSERA_TRAINER_PLAN_ATTENTION_KERNELS_H

#include "common/conf/conf.h"
#include "trainer/model/layers/device_batch.h"
#include "trainer/ops/attention_work.h"
#include "trainer/parallel/mesh.h"
#include "trainer/plan/rates.h"
#include "trainer/plan/row_work.h"

/* Where attention may run with cuDNN's kernels. What it takes of these calls is decided by shape
 * (attention_taken_parts). */
typedef struct attention_use {
    bool text, vision, deterministic;
} attention_use;

/* cudnn: whether the device has it. Rows that share a prefix use our own kernels for text, but a
 * stream of such rows may have others. */
attention_use attention_use_of(const conf *options, bool cudnn, const layout *degrees);

/* The calls of a rank in a micro-batch of these capacities; no tokens where it has none. ranks
 * NULL: there is one. */
attention_call attention_call_text(const model_dims *dims, const mesh *ranks,
                                   const batch_caps *caps);
attention_call attention_call_vision(const model_dims *dims, const mesh *ranks,
                                     const batch_caps *caps);

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
/* "cuDNN" or "own kernels"; cuDNN has two kinds of backward pass. */
const char *attention_kernels_name(rate_key backward);

#endif
