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

/* Its device has no memory, but the engine is that of GPUs. */
static void set_dry(conf *c)
{
    c->training_backend = BACKEND_CUDA;
    c->comm_engine = ENGINE_NCCL;
    if (c->log_level > LOG_WARN) /* the table is what is to be read, not the ranks' chatter */
        c->log_level = LOG_WARN;
    log_set_level((int)c->log_level);
}

static status check_train(conf *c, int n)
{
    TRY(engine_check_ranks(c));
    return train_check(c, n, false);
}

static status check_dry(conf *c, int n)
{
    set_dry(c);
    return train_check(c, n, false);
}

static status run_rank(conf *c, bool dry)
{
    world w;
    world_place place;
    signal(SIGPIPE, SIG_IGN); /* who reads our lines may leave; that ends no run */
    TRY(world_place_find(&place));
    if (dry)
        set_dry(c);
    else if (place.size > 1)
        TRY(engine_choose(c, world_gpu(&place)));
    TRY(dry ? world_open_played(c, &w) : world_open(c, &w));
    world_fit(&w, c);
    status st = !dry ? train_run(c, &w) : dry_run(c, place.size > 1 ? &w : NULL);
    if (st == ST_OK && c->metrics_comm_ledger && !dry) {
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
    if (st == ST_OK)
        st = run_rank(&c, dry);
    conf_done(&c);
    return st;
}
