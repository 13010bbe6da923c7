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

static status evaluate_as(const conf *c, const world *w)
{
    session s = {0};
    evaluation e;
    status st;
    TRY(world_log(w, c));
    TRY_OR(done, session_open_rank(c, w, &s));
    TRY_OR(done, evaluate_model(&s, true, c->eval_show, &e));
    session_check_first_loss(&s, e.loss);
    evaluation_print(&e, -1);
    if (e.vqa.all.count)
        vqa_tally_print(&e.vqa, stdout);
done:
    session_close(&s);
    return st;
}

static status run_rank(conf *c)
{
    world w;
    world_place place;
    TRY(world_place_find(&place));
    if (c->comm_engine == ENGINE_REPLAY)
        return FAIL(ST_CONFIG,
                    "comm.engine replay simulates all ranks but one, and held-out figures "
                    "are summed over all of them: trainer eval needs another engine");
    if (place.size > 1)
        TRY(engine_choose(c, world_gpu(&place)));
    TRY(world_open(c, &w));
    world_fit(&w, c);
    return world_close(&w, evaluate_as(c, &w));
}

/* Refuses options whose layout is not one of n ranks. */
static status check_ranks(conf *c, int n)
{
    model_dims d;
    layout l;
    TRY(session_dims(c, &d));
    const layout_limits limits = params_limits(&d);
    TRY(layout_of(c, &limits, &l));
    return session_check_layout(c, n);
}

status verb_eval(int argc, char **argv)
{
    conf c;
    int ranks;
    TRY(launch_take(&argc, argv, &ranks));
    if (ranks > 1)
        return launch_again(ranks, needs, check_ranks, argc, argv);
    TRY(verb_load_last(&c, &argc, argv, needs));
    log_init("trainer", c.log_level, c.log_json);
    status st = run_rank(&c);
    conf_done(&c);
    return st;
}
