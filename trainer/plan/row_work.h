/* SPDX-License-Identifier: Apache-2.0 */
/* row_work.h: what a row of a configuration is assumed to be made of, its work and bytes, and which
 * kernels run its attention on a GPU: cuDNN's or our own, by the rules of ops/attention_work.h and
 * of trainer/ops/cuda. Predictions of time begin with it. */
#ifndef TESSERA_TRAINER_PLAN_ROW_WORK_H
#define TESSERA_TRAINER_PLAN_ROW_WORK_H

#include "common/conf/conf.h"
#include "trainer/model/layers/device_batch.h"
#include "trainer/model/dims/dims.h"
#include "trainer/ops/attention_work.h"
#include "trainer/parallel/mesh.h"
#include "trainer/plan/rates.h"

/* A row is made of documents of this many tokens, each with one image of this grid (frames, height
 * and width in patches; all 0: text alone). */
typedef struct row_kind {
    int64_t seq_len, document;
    double targets; /* of a document: tokens that are predicted, at which alone the head works */
    int32_t grid[3];
    double questions; /* documents that show one image, which the row has once; 1: not shared */
    int64_t prefix;   /* tokens that these documents have in common and the row has once; else 0 */
} row_kind;
/* The assumed row. Formats with images get the mean sample of VQAv2, which has 313 tokens, 2.4 of
 * them targets, and an image of 640 x 480, or 30 x 40 patches. For text a row is one document.
 * Without data.pack a row is a single document, or those that share their image, since shape
 * buckets cut off its padding; padding inside a bucket is not counted.
 *
 * Where data.group lets samples share images or their beginning, VQAv2's mean of 5.36 questions
 * show one image. How many do in another data set is known only to the daemon that has it indexed
 * (`prepd plan`), so there nothing counts as shared. */
row_kind row_kind_of(const conf *options, const model_dims *dims);
/* Whether data.group lets samples share images, and row_kind_of cannot know how many do. */
bool row_kind_unknown(const conf *options, const row_kind *row);
/* FLOPs of the forward pass over one such row; out->training is 0. */
void row_kind_flops(const row_kind *row, const model_dims *dims, flops *out);
/* Images of a row, and questions with their answers; on average, where they are shared. */
double row_kind_images(const row_kind *row);
double row_kind_pairs(const row_kind *row);
/* Questions of VQAv2's training set, where the row is made of them and each is a sample; else 0. */
int64_t row_kind_epoch(const conf *options, const row_kind *row);
/* How many times as many FLOPs a question with its answer would take if nothing were shared. */
double row_kind_saving(const row_kind *row, const model_dims *dims);
/* Bytes that element-wise work moves in the forward and the backward pass, for one token in a
 * decoder layer and for one patch in a vision block. */
double cost_layer_bytes(const text_dims *text);
double cost_block_bytes(const vision_dims *vision);
/* Multiply-adds with which the experts of a layer compute `what` (RECOMPUTE_FC1 .. of
 * model/layers/recompute.h) again for one token. Those that ranks share keep nothing of their first
 * product, so the backward pass makes it in any case, and the way to the output of the second once
 * more. */
int64_t expert_work_again(const text_dims *text, const layout *degrees, unsigned what);
/* FLOPs of attention's backward pass over those of its forward pass, as a device does them: five
 * products to two, because the scores are recomputed. Useful FLOPs count twice the forward pass. */
#define COST_ATTENTION_BACKWARD 2.5

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
