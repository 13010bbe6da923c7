/* SPDX-License-Identifier: Apache-2.0 */
/* memory_search.h: the search for micro-batches that fit into memory.limit of a device, and what to
 * change where one does not. */
#ifndef TESSERA_TRAINER_PLAN_MEMORY_SEARCH_H
#define TESSERA_TRAINER_PLAN_MEMORY_SEARCH_H

#include "trainer/plan/layout_plan.h"

/* Stands for the configured mode, beside the modes of activation checkpointing (AC_NONE ..). */
enum { SEARCH_AS_CONFIGURED = -1 };

/* What is recomputed with this mode and micro-batches of `rows` rows. */
WARN_UNUSED status memory_search_recompute(const plan_input *in, int64_t rows, int mode,
                                           recomputes *out);
/* The most rows of a micro-batch that fit; 0 if not even one does. */
WARN_UNUSED status memory_most_rows(const plan_input *in, int mode, int64_t *out);

enum { CHANGE_TEXT_MAX = 512 };
/* Writes the options with which an input fits that does not, and the bytes that it then takes, for
 * example "what fits: training.local_batch_size 1, training.seq_len 4096 (130.5 GiB)". Every change
 * is planned before it is named.
 *
 * On a GPU a memory.limit of 0.97 comes first, if nothing else need change. Then comes the smallest
 * sufficient change of the micro-batch: selective activation checkpointing, full, fewer rows (a
 * number that still divides the step), shorter rows. If nothing fits, it names what is lacking.
 * Options that save memory are tried by deploy/what-fits. */
WARN_UNUSED status memory_smallest_change(const plan_input *in, char out[CHANGE_TEXT_MAX]);

#endif
