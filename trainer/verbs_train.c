/* verbs_train.c: trainer train. */
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "common/proc.h"
#include "trainer/parallel/launch.h"
#include "trainer/train.h"
#include "trainer/verbs.h"

/* What a launcher says beats what one process would take for itself. */
static void fit_to_world(const world *w, conf *c)
{
    int64_t share = proc_cpus() / w->place.local_size;
    if (w->place.size == 1)
        return;
    if (c->world_size == 0) /* data_parallel_shard_degree -1 takes all that are there */
        c->world_size = w->place.size;
    if (strcmp(w->engine->name, "mpi") == 0 && strcmp(c->cuda_graph_scope, "off") != 0) {
        if (c->training_backend != BACKEND_CPU)
            log_info("cuda_graph.scope is off: MPI's collectives can not be captured");
        c->cuda_graph_scope = "off";
    }
    if (c->training_threads == 0)
        c->training_threads = share > 1 ? share : 1;
}

static status run_rank(conf *c)
{
    world w;
    TRY(world_open(c, &w));
    fit_to_world(&w, c);
    status st = train_run(c, &w);
    if (st == ST_OK && c->metrics_comm_ledger)
        comm_ledger_print(w.ledger, stdout);
    return world_close(&w, st);
}

/* --nproc N: the options are read for what they say of the ranks; these read them again. */
static status start_ranks(int n, int argc, char **argv)
{
    conf c;
    int rest = argc;
    char **copy = calloc((size_t)argc + 1, sizeof *copy);
    if (!copy)
        return FAIL(ST_NO_MEMORY, "no memory for the command line");
    memcpy(copy, argv, (size_t)argc * sizeof *copy);
    status st = conf_load(&c, &rest, copy);
    if (st == ST_OK) {
        st = launch_ranks(&c, n, argc, argv);
        conf_done(&c);
    }
    free(copy);
    return st;
}

status verb_train(int argc, char **argv)
{
    conf c;
    int ranks;
    TRY(launch_take(&argc, argv, &ranks));
    if (ranks > 1)
        return start_ranks(ranks, argc, argv);
    TRY(conf_load(&c, &argc, argv));
    log_init("trainer", c.log_level, c.log_json);
    if (argc > 1 && strcmp(argv[1], "--profile") == 0) {
        c.metrics_profile = true;
        argv[1] = argv[0];
        argv++;
        argc--;
    }
    if (c.metrics_profile)
        c.cuda_graph_scope = "off"; /* a graph has no single calls to measure */
    status st = argc > 1 ? FAIL(ST_USAGE,
                                "trainer train does not know \"%s\"; see trainer train "
                                "--help",
                                argv[1])
                         : run_rank(&c);
    conf_done(&c);
    return st;
}
