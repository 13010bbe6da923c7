/* sweep.h: lists the layouts of a number of ranks, those predicted to be fastest first. */
#ifndef TESSERA_TRAINER_PLAN_SWEEP_H
#define TESSERA_TRAINER_PLAN_SWEEP_H

#include <stdio.h>

#include "trainer/plan/layout_plan.h"
#include "trainer/plan/rates.h"

/* Tries every valid product of degrees for `ranks` ranks, in each mode of activation checkpointing,
 * with the largest micro-batch that fits memory.limit of the input's device. All other options are
 * those of the input; its layout and shapes are not used. Prints the best `most` of them. ST_CONFIG
 * if nothing fits. */
WARN_UNUSED status sweep_layouts(const plan_input *in, int64_t ranks, const rates *rates, int most,
                                 FILE *to);

#endif
