/* image_swap.h: puts other pictures under the questions of a row, so that evaluation can tell what
 * the text alone gives away.
 *
 * For each grid (height and width in patches) it keeps the last picture and the last one before it
 * that was different. It exchanges a picture for the latter, because several questions in a row may
 * be about the same picture. It needs memory for two pictures per grid that occurs. */
#ifndef TESSERA_TRAINER_EVAL_IMAGE_SWAP_H
#define TESSERA_TRAINER_EVAL_IMAGE_SWAP_H

#include "proto/batch.h"

typedef struct image_swap image_swap;

WARN_UNUSED status image_swap_new(image_swap **out);
/* Frees *l and sets it to NULL; NULL in it is accepted. */
void image_swap_free(image_swap **swap);

/* Writes another picture of the same grid over every picture of `packed`, a row without video,
 * where there is one. lent [n_docs] is written: true for a document whose sample shows pictures,
 * all of which were exchanged; false if one of them had no partner yet, and for a sample without
 * pictures. A branch shows those of its prefix. */
WARN_UNUSED status image_swap_exchange(image_swap *swap, row *packed, bool *lent);

#endif
