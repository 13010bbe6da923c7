/* sweep.h: layouts of a number of ranks, the fastest predicted first. */
#ifndef TESSERA_TRAINER_PLAN_SWEEP_H
#define TESSERA_TRAINER_PLAN_SWEEP_H

#include <stdio.h>

#include "trainer/plan/layout_plan.h"
#include "trainer/plan/rates.h"

/* Every valid product of degrees for `ranks` ranks, with the largest micro-batch that fits
 * memory.limit of the input's device, with and without activation checkpointing; the input's
 * options say the rest, and its layout and shapes are not looked at. Prints the best `most`.
 * ST_CONFIG where nothing fits. */
WARN_UNUSED status sweep_layouts(const plan_input *in, int64_t ranks, const rates *r, int most,
                                 FILE *to);

#endif
