/* memory_search.h: the one search for what fits memory.limit of a device. */
#ifndef TESSERA_TRAINER_PLAN_MEMORY_SEARCH_H
#define TESSERA_TRAINER_PLAN_MEMORY_SEARCH_H

#include "trainer/plan/layout_plan.h"

/* Beside the modes of activation checkpointing (AC_NONE ..). */
enum { SEARCH_AS_CONFIGURED = -1 };

/* What is computed again with this mode. */
WARN_UNUSED status memory_search_recompute(const plan_input *in, int64_t rows, int mode,
                                           recomputes *out);
/* The most rows of a micro-batch that fit; 0 if not even one. */
WARN_UNUSED status memory_most_rows(const plan_input *in, int mode, int64_t *out);

enum { SEARCH_TEXT_MAX = 512 };
/* The smallest change with which the input fits, as the options that make it: "what fits:
 * activation_checkpoint.mode full, training.local_batch_size 3, training.seq_len 256". In this
 * order: selective activation checkpointing, full, fewer rows in a micro-batch (as many as still
 * divide the step), shorter rows. */
WARN_UNUSED status memory_smallest_change(const plan_input *in, char out[SEARCH_TEXT_MAX]);

#endif
