/* SPDX-License-Identifier: Apache-2.0 */
/* image_swap.h: puts other pictures under the questions of a row, so that evaluation shows what the
 * text alone gives away, and the chance level of that accuracy.
 *
 * For each grid (height and width in patches) image_swap keeps the last picture and the last one
 * before it that was different. It exchanges a picture for the latter, because several questions in
 * a row may be about the same picture. It needs memory for two pictures per grid that occurs.
 *
 * The chance level is how often two documents whose texts are the same up to a reply, but which
 * show different pictures, have the same reference reply: the accuracy with swapped pictures of a
 * model that looks only at the picture. It can be estimated only if the same questions occur many
 * times, as in generated data; a question that occurs once says nothing about it. */
#ifndef TESSERA_TRAINER_EVAL_IMAGE_SWAP_H
#define TESSERA_TRAINER_EVAL_IMAGE_SWAP_H

#include "proto/row/batch.h"
#include "trainer/generate/prompt.h"

typedef struct image_swap image_swap;

WARN_UNUSED status image_swap_new(image_swap **out);
/* Frees *l and sets it to NULL; NULL in it is accepted. */
void image_swap_free(image_swap **swap);

/* Writes another picture of the same grid over every picture of `packed`, a row without video,
 * where there is one. lent [n_docs] is written: true for a document whose sample shows pictures,
 * all of which were exchanged; false if one of them had no partner yet, and for a sample without
 * pictures. A branch shows those of its prefix. */
WARN_UNUSED status image_swap_exchange(image_swap *swap, row *packed, bool *lent);

typedef struct chance_entry {
    uint64_t question, answer; /* hashes of their tokens */
} chance_entry;

typedef struct chance {
    chance_entry *list; /* [count] heap; 16 bytes a reply */
    int64_t count, capacity;
} chance;

/* Adds those replies of a row whose documents show pictures. A chance that is all 0 is empty. */
WARN_UNUSED status chance_add(chance *all, const row *packed, const reply *replies, int64_t count);
/* The chance level in percent, or NAN where there are none, or where fewer than nine in ten have a
 * question that occurs again. Reorders the list. */
double chance_percent(chance *all);
void chance_done(chance *all);

#endif
