/* plan_trial.c: see plan_trial.h. */
#include "trainer/plan/plan_trial.h"

#include "trainer/optim/groups.h"

status plan_trial_begin(const conf *options, plan_trial *out)
{
    *out = (plan_trial){0};
    return conf_copy(options, &out->options);
}

status plan_trial_make(plan_trial *inout, const model_dims *dims, const plan_device *card)
{
    TRY(conf_check(&inout->options));
    TRY(params_new(dims, &inout->registry));
    TRY(groups_apply(&inout->options, inout->registry));
    TRY(layout_of(&inout->options, NULL, &inout->degrees));
    inout->in = (plan_input){.conf = &inout->options,
                             .layout = &inout->degrees,
                             .dims = dims,
                             .params = inout->registry,
                             .device = card};
    return ST_OK;
}

status plan_trial_rows(plan_trial *inout, int64_t micro_batch, int64_t step)
{
    inout->options.training_local_batch_size = micro_batch;
    inout->options.training_global_batch_size = step;
    return layout_of(&inout->options, NULL, &inout->degrees);
}

void plan_trial_end(plan_trial *trial)
{
    params_free(&trial->registry);
    conf_done(&trial->options);
}
