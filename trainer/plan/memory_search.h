/* memory_search.h: the search for what fits into memory.limit of a device. */
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

enum { SEARCH_TEXT_MAX = 512 };
/* Finds the smallest change with which the input fits and writes the options that make it, for
 * example "what fits: activation_checkpoint.mode full, training.local_batch_size 3,
 * training.seq_len 256". Tries in this order: selective activation checkpointing, full, fewer rows
 * in a micro-batch (as many as still divide the step), shorter rows. */
WARN_UNUSED status memory_smallest_change(const plan_input *in, char out[SEARCH_TEXT_MAX]);

#endif
