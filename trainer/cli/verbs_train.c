/* verbs_train.c: trainer train: starts ranks (--nproc), or runs as one of them, or plays all of
 * them with shapes alone (--dry-run). */
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

/* What the verb cannot do without. */
static const conf_need needs[] = {
    {"model.path", NULL, "name a Hugging Face folder or a preset (trainer inspect lists them)"},
    {0},
};

static status check_train(conf *options, int count)
{
    TRY(engine_check_ranks(options));
    return train_check(options, NULL, count, count, false);
}

/* The GPU that a dry run plans for: --device, or an H200, for which the shipped configurations are
 * made. Global because a launcher's check is called with options and the number of ranks alone. */
static plan_device planned;

static status check_dry(conf *options, int count)
{
    dry_run_set(options);
    return train_check(options, &planned, count, count, false);
}

static status choose_device(const char *name, bool dry)
{
    if (name && !dry)
        return FAIL(ST_USAGE,
                    "--device %s: train plans for the device it runs on; --device names another "
                    "one for --dry-run and for trainer plan",
                    name);
    TRY(plan_device_named(name ? name : "h200", &planned));
    if (plan_device_is_cpu(&planned))
        return FAIL(ST_USAGE, "--device cpu: each rank of a dry run has a GPU; name one");
    return ST_OK;
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
    if (st == ST_OK && profiled && job.place.size > 1) {
        comm_ledger_print(job.ledger, stdout);
        if (world_simulated(&job))
            printf("%s\n", job.replayed);
    }
    return world_close(&job, st);
}

/* The value of --device, which stays in argv because a launcher passes all arguments on to the
 * ranks. */
static const char *named_device(int argc, char **argv)
{
    static const char flag[] = "--device";
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], flag) == 0)
            return i + 1 < argc ? argv[i + 1] : "";
        if (strncmp(argv[i], "--device=", sizeof flag) == 0)
            return argv[i] + sizeof flag;
    }
    return NULL;
}

status verb_train(int argc, char **argv)
{
    conf options;
    int ranks;
    TRY(launch_take(&argc, argv, &ranks));
    bool dry = false;
    for (int i = 1; i < argc; i++)
        dry = dry || strcmp(argv[i], "--dry-run") == 0;
    TRY(choose_device(named_device(argc, argv), dry));
    if (ranks > 1)
        return launch_again(ranks, needs, dry ? check_dry : check_train, argc, argv);
    TRY(verb_load(&options, &argc, argv, needs));
    log_init("trainer", options.log_level, options.log_json);
    dry = verb_take_flag(&argc, argv, "--dry-run"); /* the launcher has passed it on */
    const bool profiled = verb_take_flag(&argc, argv, "--profile");
    if (profiled)
        options.cuda_graph_scope = "off"; /* a graph has no single calls to measure */
    const char *taken;
    status st = verb_take(&argc, argv, "--device", &taken); /* chosen above */
    if (st == ST_OK)
        st = verb_all_taken(argc, argv);
    signal(SIGPIPE, SIG_IGN); /* a reader of standard output may leave without ending the run */
    if (st == ST_OK)
        st = dry ? dry_run(&options, &planned) : run_rank(&options, profiled);
    conf_done(&options);
    return st;
}
