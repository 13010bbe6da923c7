/* row_work.h: what a row of a configuration is made of, and the work and bytes of one: what
 * predictions of time begin with. It knows of no layout and no rate. */
#ifndef TESSERA_TRAINER_PLAN_ROW_WORK_H
#define TESSERA_TRAINER_PLAN_ROW_WORK_H

#include "common/conf/conf.h"
#include "trainer/model/dims.h"

/* What a row is made of: documents of this length, each with one picture of this grid (patches; 0 =
 * text alone). */
typedef struct row_kind {
    int64_t seq_len, document;
    int32_t grid[3];
} row_kind;
/* VQAv2's mean sample (shared/facts: 313 tokens, a picture of 640 x 480) for formats with pictures,
 * one document per row for text. Without data.pack a row is one document: of its padding shape
 * buckets leave less than the document (padding of a bucket is not counted). */
row_kind row_kind_of(const conf *c, const model_dims *d);
/* Forward of one such row; training is left 0. */
void row_kind_flops(const row_kind *r, const model_dims *d, flops *out);
/* Pictures of a row. */
int64_t row_kind_images(const row_kind *r);
/* Bytes that element-wise work moves, forward and backward, of one token and decoder layer, and of
 * one patch and vision block. */
double cost_layer_bytes(const text_dims *t);
double cost_block_bytes(const vision_dims *v);
/* FLOPs of attention's backward that a device does over the forward's: five products to two, since
 * the scores are made again. Useful ones are counted twice the forward's. */
#define COST_ATTENTION_BACKWARD 2.5

#endif
