/* row_work.h: what a row of a configuration is assumed to be made of, and its work and bytes.
 * Predictions of time begin with it. It knows no layout and no rate. */
#ifndef TESSERA_TRAINER_PLAN_ROW_WORK_H
#define TESSERA_TRAINER_PLAN_ROW_WORK_H

#include "common/conf/conf.h"
#include "trainer/model/dims/dims.h"

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
/* FLOPs of attention's backward pass over those of its forward pass, as a device does them: five
 * products to two, because the scores are recomputed. Useful FLOPs count twice the forward pass. */
#define COST_ATTENTION_BACKWARD 2.5

#endif
