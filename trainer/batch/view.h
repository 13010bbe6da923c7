/* view.h: the part of a staged micro-batch that one rank of a row group works on. Internal to
 * trainer/batch. */
#ifndef TESSERA_TRAINER_BATCH_VIEW_H
#define TESSERA_TRAINER_BATCH_VIEW_H

#include "trainer/batch/stager.h"

/* Scratch of a group's sharing; heap. */
typedef struct view_scratch {
    int32_t *order; /* [all tokens] row_share_order */
    int32_t *owner; /* [tokens], then each token's place in the order */
} view_scratch;

WARN_UNUSED status view_scratch_new(const batch_caps *whole, const row_share *share,
                                    view_scratch *out);
void view_scratch_done(view_scratch *v);

/* Token arrays, targets and borders of `mine` (its capacities and share are set; counts written)
 * from those of `whole`, both on the host. each: tokens of a rank, the padding at their end.
 * stride: of the whole's positions. Visual arrays are not touched. */
WARN_UNUSED status view_make(const view_scratch *v, const device_batch *whole, int64_t stride,
                             int64_t each, st_dtype acc, device_batch *mine);

#endif
