/* view.h: cuts out the part of a staged micro-batch that one of the ranks sharing its rows works
 * on. Internal to trainer/batch. */
#ifndef TESSERA_TRAINER_BATCH_VIEW_H
#define TESSERA_TRAINER_BATCH_VIEW_H

#include "trainer/batch/stager.h"

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
