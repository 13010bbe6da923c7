/* SPDX-License-Identifier: Apache-2.0 */
/* verbs_train.c: trainer train: starts ranks (--nproc), or runs as one of them, or plays all of
 * them with shapes alone (--dry-run). */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "common/program/log.h"
#include "common/program/verb.h"
#include "trainer/parallel/launcher.h"
#include "trainer/train/train.h"
#include "trainer/cli/verbs.h"

/* What the verb cannot do without. */
static const conf_need needs[] = {
    {"model.path", NULL, "name a Hugging Face folder or a preset (trainer inspect lists them)"},
    {0},
};

static status check_train(conf *options, int count)
{
    return train_check(options, count, count, false);
}

static status run_rank(conf *options, bool profiled)
{
    world job;
    world_place place;
    TRY(world_place_find(&place));
    if (place.size > 1)
        TRY(engine_choose(options, world_gpu(&place)));
    TRY(world_open(options, &job));
    world_fit(&job, options);
    status st = train_run(options, &job, profiled);
    if (st == ST_OK && profiled && job.place.size > 1)
        comm_ledger_print(job.ledger, stdout);
    return world_close(&job, st);
}

status verb_train(int argc, char **argv)
{
    conf options;
    int ranks;
    TRY(launch_take(&argc, argv, &ranks));
    if (ranks > 1)
        return launch_again(ranks, needs, check_train, argc, argv);
    TRY(verb_load(&options, &argc, argv, needs));
    log_init("trainer", options.log_level, options.log_json);
    const bool profiled = verb_take_flag(&argc, argv, "--profile");
    if (profiled)
        options.cuda_graph_scope = "off"; /* a graph has no single calls to measure */
    status st = verb_all_taken(argc, argv);
    signal(SIGPIPE, SIG_IGN); /* a reader of standard output may leave without ending the run */
    if (st == ST_OK)
        st = run_rank(&options, profiled);
    conf_done(&options);
    return st;
}
