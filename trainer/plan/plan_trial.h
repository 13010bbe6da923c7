/* plan_trial.h: the input of a plan with other options than those given, to find out what they
 * would take.
 *
 *   plan_trial_begin   copies the options
 *   ..                 the caller changes trial.options
 *   plan_trial_make    makes everything that follows from them
 *   plan_trial_end     frees it; also after a failure, and of a trial that is all 0 */
#ifndef TESSERA_TRAINER_PLAN_TRIAL_H
#define TESSERA_TRAINER_PLAN_TRIAL_H

#include "trainer/plan/layout_plan.h"

typedef struct plan_trial {
    conf options;     /* owned */
    params *registry; /* owned; after groups_apply */
    layout degrees;
    plan_input in; /* points into this struct, which must stay where it is */
} plan_trial;

WARN_UNUSED status plan_trial_begin(const conf *options, plan_trial *out);
/* dims and card are borrowed until plan_trial_end. ST_CONFIG if the options contradict each other
 * or the model. */
WARN_UNUSED status plan_trial_make(plan_trial *inout, const model_dims *dims,
                                   const plan_device *card);
/* Other rows of a micro-batch and of a step. */
WARN_UNUSED status plan_trial_rows(plan_trial *inout, int64_t micro_batch, int64_t step);
void plan_trial_end(plan_trial *trial);

#endif
