/* memory_change.h: finds changes that would make an input fit that does not. */
#ifndef TESSERA_TRAINER_PLAN_MEMORY_CHANGE_H
#define TESSERA_TRAINER_PLAN_MEMORY_CHANGE_H

#include "trainer/plan/layout_plan.h"

enum { CHANGE_TEXT_MAX = 1024 };
/* Writes the options with which the input fits, and the bytes that it then takes, for example
 * "what fits: training.local_batch_size 1, training.seq_len 4096 (130.5 GiB); or optimizer.states
 * int8, training.master bf16 (128.3 GiB)". Every change is planned before it is named.
 *
 * On a GPU a memory.limit of 0.97 comes first, if nothing else need change. Then comes the
 * smallest sufficient change of the micro-batch: selective activation checkpointing, full, fewer
 * rows (a number that still divides the step), shorter rows. If the mode alone is not enough, the
 * second suggestion are options that save memory with the rows as they are, or with fewer and
 * shorter ones if even that does not fit. If nothing fits, it says what is lacking. */
WARN_UNUSED status memory_smallest_change(const plan_input *in, char out[CHANGE_TEXT_MAX]);

#endif
