/* expert_work.h: what the backward pass computes again of experts. */
#ifndef TESSERA_TRAINER_PLAN_EXPERT_WORK_H
#define TESSERA_TRAINER_PLAN_EXPERT_WORK_H

#include "trainer/model/dims/dims.h"
#include "trainer/parallel/layout.h"

/* Multiply-adds with which the experts of a layer compute `what` (RECOMPUTE_FC1 .. of
 * model/layers/recompute.h) again for one token. Those that ranks share keep nothing of their first
 * product, so the backward pass makes it in any case, and the way to the output of the second once
 * more. */
int64_t expert_work_again(const text_dims *text, const layout *degrees, unsigned what);

#endif
