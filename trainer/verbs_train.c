/* verbs_train.c: trainer train. */
#include "common/log.h"
#include "trainer/train.h"
#include "trainer/verbs.h"

status verb_train(int argc, char **argv)
{
    conf c;
    TRY(conf_load(&c, &argc, argv));
    log_init("trainer", c.log_level, c.log_json);
    status st = argc > 1 ? FAIL(ST_USAGE,
                                "trainer train does not know \"%s\"; see trainer train "
                                "--help",
                                argv[1])
                         : train_run(&c);
    conf_done(&c);
    return st;
}
