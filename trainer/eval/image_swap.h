/* image_swap.h: other pictures for the questions of a row, so that evaluation can tell what the
 * text alone gives away.
 *
 * For each grid it keeps the picture seen last and the last one that differed from it; the latter
 * is lent, since several questions in a row may be on one picture. Memory: two pictures per grid
 * that occurs. */
#ifndef TESSERA_TRAINER_EVAL_IMAGE_SWAP_H
#define TESSERA_TRAINER_EVAL_IMAGE_SWAP_H

#include "proto/batch.h"

typedef struct image_swap image_swap;

WARN_UNUSED status image_swap_new(image_swap **out);
void image_swap_free(image_swap **l);

/* Writes another picture of the same grid over every image of r (row without video). lent [D]:
 * true for documents that show an image and whose images were all exchanged; false where one had
 * no partner yet, and for documents without images. */
WARN_UNUSED status image_swap_exchange(image_swap *l, row *r, bool *lent);

#endif
