/* SPDX-License-Identifier: Apache-2.0 */
/* row_share.h: decides how the ranks that share a row divide a micro-batch (parallel/layouts.md).
 *
 * Tokens go to context ranks so that each has about the same work in causal attention; the tokens
 * of a context rank go to its tensor ranks in equal runs. Visual items go to all ranks of the row
 * so that each has about the same work in the vision tower. These are pure functions of the rows,
 * so every rank of the group computes the same division without talking to the others. */
#ifndef TESSERA_TRAINER_BATCH_ROW_SHARE_H
#define TESSERA_TRAINER_BATCH_ROW_SHARE_H

#include "common/base/status.h"
#include "proto/row/batch.h"
#include "trainer/model/dims/dims.h"
#include "trainer/model/layers/device_batch.h"

/* Divides tokens over context ranks. Document i is the tokens [cu[i], cu[i + 1]), and there are
 * n_tokens = cu[n_docs] <= ranks * each of them. prefix[i] is the document whose tokens those of
 * document i see before their own, -1 if there is none; NULL: no document has one.
 *
 * order [ranks, each] is written: for each context rank the packed numbers of its tokens,
 * ascending, then -1. owner [n_tokens] is scratch. *out_uneven is the most work of a rank over the
 * mean, 1 if there is no work.
 *
 * A document with much work is cut into 2 * ranks pieces, and each rank gets one from the front and
 * the matching one from the back, which makes their work equal. Smaller documents go whole to the
 * rank with the least work, and are cut only where no rank has room. */
WARN_UNUSED status row_share_order(const int32_t *cu, const int32_t *prefix, int64_t n_docs,
                                   int64_t ranks, int64_t each, int32_t *order, int32_t *owner,
                                   double *out_uneven);

/* The rank that encodes a visual item, and where the item's merged rows begin in its features. */
typedef struct item_place {
    int32_t rank, first;
} item_place;

/* Divides the visual items of all rows over the ranks of a row. out [items of all rows] is written
 * in their order. *out_merged: the most merged rows of a rank; *out_uneven: the most work of a rank
 * over the mean. */
WARN_UNUSED status row_share_items(const row *rows, int64_t n_rows, const vision_dims *dims,
                                   int64_t ranks, item_place *out, int64_t *out_merged,
                                   double *out_uneven);

/* ---- the part of a staged micro-batch that this rank works on ---- */

/* Lists of the division, on the heap. */
typedef struct view_scratch {
    int32_t *order; /* [tokens of all ranks, padding included] as row_share_order writes it */
    int32_t *owner; /* [tokens] the owner of each packed token, later its place in `order` */
} view_scratch;

WARN_UNUSED status view_scratch_new(const batch_caps *whole, const row_share *share,
                                    view_scratch *out);
void view_scratch_done(view_scratch *scratch);

/* Writes token arrays, targets, borders and counts of `mine` from those of `whole`, both on the
 * host. mine->cap and mine->share are already set. each: the tokens of every rank, with padding at
 * their end. stride: the elements between two axes of whole->positions. Visual arrays are not
 * touched. */
WARN_UNUSED status view_make(const view_scratch *scratch, const device_batch *whole, int64_t stride,
                             int64_t each, st_dtype acc, device_batch *mine);

#endif
