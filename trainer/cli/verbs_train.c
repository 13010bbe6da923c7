/* verbs_train.c: trainer train. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "common/program/log.h"
#include "common/program/verb.h"
#include "trainer/check/dry_run.h"
#include "trainer/parallel/engine.h"
#include "trainer/parallel/launcher.h"
#include "trainer/train/train.h"
#include "trainer/cli/verbs.h"

static status check_train(conf *c, int n)
{
    TRY(engine_check_ranks(c));
    return train_check(c, n, false);
}

static status check_dry(conf *c, int n)
{
    dry_run_set(c);
    return train_check(c, n, false);
}

static status run_rank(conf *c)
{
    world w;
    world_place place;
    TRY(world_place_find(&place));
    if (place.size > 1)
        TRY(engine_choose(c, world_gpu(&place)));
    TRY(world_open(c, &w));
    world_fit(&w, c);
    status st = train_run(c, &w);
    if (st == ST_OK && c->metrics_comm_ledger) {
        comm_ledger_print(w.ledger, stdout);
        if (world_replayed(&w))
            printf("%s\n", w.replayed);
    }
    return world_close(&w, st);
}

status verb_train(int argc, char **argv)
{
    conf c;
    int ranks;
    TRY(launch_take(&argc, argv, &ranks));
    bool dry = false;
    for (int i = 1; i < argc; i++)
        dry = dry || strcmp(argv[i], "--dry-run") == 0;
    if (ranks > 1)
        return launch_again(ranks, dry ? check_dry : check_train, argc, argv);
    TRY(conf_load(&c, &argc, argv));
    log_init("trainer", c.log_level, c.log_json);
    dry = verb_take_flag(&argc, argv, "--dry-run"); /* the launcher has passed it on */
    if (verb_take_flag(&argc, argv, "--profile"))
        c.metrics_profile = true;
    if (c.metrics_profile)
        c.cuda_graph_scope = "off"; /* a graph has no single calls to measure */
    status st = verb_all_taken(argc, argv);
    signal(SIGPIPE, SIG_IGN); /* who reads our lines may leave; that ends no run */
    if (st == ST_OK)
        st = dry ? dry_run(&c) : run_rank(&c);
    conf_done(&c);
    return st;
}
