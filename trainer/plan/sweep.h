/* sweep.h: layouts of a number of ranks, the fastest predicted first. */
#ifndef TESSERA_TRAINER_PLAN_SWEEP_H
#define TESSERA_TRAINER_PLAN_SWEEP_H

#include "trainer/plan/cost.h"

/* Every valid product of degrees for `ranks` ranks, with the largest micro-batch that fits
 * memory.limit, with and without activation checkpointing; c says the rest. Prints the best `most`.
 * ST_CONFIG where nothing fits. */
WARN_UNUSED status sweep(const conf *c, int64_t ranks, const model_dims *d, const params *p,
                         const rates *r, int most, FILE *to);

#endif
