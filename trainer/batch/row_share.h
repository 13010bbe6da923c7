/* row_share.h: how the ranks of a row group share a micro-batch out (parallel/README.md): tokens
 * over context ranks so that causal work is even, then in equal runs over tensor ranks; visual
 * items over all of them so that their predicted time is even. Pure functions of the rows: every
 * rank of the group finds the same. */
#ifndef TESSERA_TRAINER_BATCH_ROW_SHARE_H
#define TESSERA_TRAINER_BATCH_ROW_SHARE_H

#include "common/base/status.h"
#include "proto/batch.h"
#include "trainer/model/device_batch.h"
#include "trainer/model/dims.h"

/* order [ranks, each]: packed token at each place of each context rank, rising, then -1. Documents
 * are tokens [cu[i], cu[i + 1]); n_tokens = cu[n_docs] <= ranks * each. A document whose work is
 * large is cut into 2 * ranks pieces, of which a rank has one from either end; smaller ones go as
 * they are to the rank with the least work, cut only where no rank has room. owner [n_tokens],
 * scratch. *out_uneven: most work of a rank over the mean (1 where there is none). */
WARN_UNUSED status row_share_order(const int32_t *cu, int64_t n_docs, int64_t ranks, int64_t each,
                                   int32_t *order, int32_t *owner, double *out_uneven);

/* Who encodes a visual item, and where its merged rows begin in that rank's features. */
typedef struct item_place {
    int32_t rank, first;
} item_place;

/* out: one per item of all rows, in order. *out_merged: most merged rows of a rank. */
WARN_UNUSED status row_share_items(const row *rows, int64_t n_rows, const vision_dims *d,
                                   int64_t ranks, item_place *out, int64_t *out_merged,
                                   double *out_uneven);

#endif
