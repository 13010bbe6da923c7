/* stage_plan.h: which decoder layers each pipeline stage gets: as parallelism.pipeline_parallel_
 * split_points says, else so that stages take even predicted time. */
#ifndef TESSERA_TRAINER_PLAN_STAGE_PLAN_H
#define TESSERA_TRAINER_PLAN_STAGE_PLAN_H

#include "trainer/model/params.h"

/* Fills inout->stage_end; nothing of one stage. Predicted time is cost.h's, by the rates that are
 * shipped, for rows of its kind: the same on every rank and device. p: the registry after
 * groups_apply. ST_CONFIG names the split points that do not fit. */
WARN_UNUSED status stage_plan(const conf *c, const model_dims *d, const params *p, layout *inout);
/* Slowest stage over the mean one, as predicted; 1 of one stage. */
WARN_UNUSED status stage_plan_uneven(const conf *c, const model_dims *d, const params *p,
                                     const layout *l, double *out);

#endif
