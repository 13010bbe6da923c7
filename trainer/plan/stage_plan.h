/* stage_plan.h: decides which decoder layers each pipeline stage gets: those that
 * parallelism.pipeline_parallel_split_points names or, without it, such that the stages take about
 * the same predicted time. */
#ifndef TESSERA_TRAINER_PLAN_STAGE_PLAN_H
#define TESSERA_TRAINER_PLAN_STAGE_PLAN_H

#include "trainer/model/params/params.h"

/* Fills inout->stage_end, unless there is only one stage. The predicted time uses the shipped rates
 * and the row of row_work.h, so it is the same on every rank and device. params: the registry after
 * groups_apply. ST_CONFIG names split points that do not fit. */
WARN_UNUSED status stage_plan(const conf *options, const model_dims *dims, const params *params,
                              layout *inout);
/* Predicted time of the slowest stage over the mean; 1 for a single stage. */
WARN_UNUSED status stage_plan_uneven(const conf *options, const model_dims *dims,
                                     const params *params, const layout *layout, double *out);

#endif
