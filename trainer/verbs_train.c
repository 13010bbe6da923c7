/* verbs_train.c: trainer train. */
#include <string.h>

#include "common/log.h"
#include "trainer/train.h"
#include "trainer/verbs.h"

static status run_rank(conf *c)
{
    world w;
    TRY(world_open(c, &w));
    if (c->world_size == 0 && w.place.size > 1) /* the shard degree -1 takes all that are there */
        c->world_size = w.place.size;
    status st = train_run(c, &w);
    world_close(&w);
    return st;
}

status verb_train(int argc, char **argv)
{
    conf c;
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
