/* verbs_train.c: trainer train. */
#include <string.h>

#include "common/log.h"
#include "trainer/train.h"
#include "trainer/verbs.h"

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
                         : train_run(&c);
    conf_done(&c);
    return st;
}
