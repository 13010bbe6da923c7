/* verbs_eval.c: trainer eval: measures the held-out loss and accuracy of a folder with weights, on
 * one rank or several. */
#include <stdio.h>

#include "common/program/log.h"
#include "common/program/verb.h"
#include "trainer/eval/figures.h"
#include "trainer/parallel/engine.h"
#include "trainer/parallel/launcher.h"
#include "trainer/cli/verbs.h"

/* What the verb cannot do without. */
static const conf_need needs[] = {
    {"model.path", NULL, "name a Hugging Face folder or a preset (trainer inspect lists them)"},
    {0},
};

static status evaluate_as(const conf *options, const world *job)
{
    session run = {0};
    evaluation result;
    status st;
    TRY(world_log(job, options));
    TRY_OR(done, session_open_rank(options, job, &run));
    TRY_OR(done, evaluate_model(&run, true, options->eval_show, &result));
    session_check_first_loss(&run, result.loss);
    evaluation_print(&result, -1);
    if (result.vqa.all.count)
        vqa_tally_print(&result.vqa, stdout);
done:
    session_close(&run);
    return st;
}

static status run_rank(conf *options)
{
    world job;
    world_place place;
    TRY(world_place_find(&place));
    if (options->comm_engine == ENGINE_REPLAY)
        return FAIL(ST_CONFIG,
                    "comm.engine replay simulates all ranks but one, and held-out figures "
                    "are summed over all of them: trainer eval needs another engine");
    if (place.size > 1)
        TRY(engine_choose(options, world_gpu(&place)));
    TRY(world_open(options, &job));
    world_fit(&job, options);
    return world_close(&job, evaluate_as(options, &job));
}

/* Refuses options whose layout is not one of `count` ranks. */
static status check_ranks(conf *options, int count)
{
    model_dims dims;
    layout degrees;
    TRY(session_dims(options, &dims));
    const layout_limits limits = params_limits(&dims);
    TRY(layout_of(options, &limits, &degrees));
    return session_check_layout(options, count);
}

status verb_eval(int argc, char **argv)
{
    conf options;
    int ranks;
    TRY(launch_take(&argc, argv, &ranks));
    if (ranks > 1)
        return launch_again(ranks, needs, check_ranks, argc, argv);
    TRY(verb_load_last(&options, &argc, argv, needs));
    log_init("trainer", options.log_level, options.log_json);
    status st = run_rank(&options);
    conf_done(&options);
    return st;
}
