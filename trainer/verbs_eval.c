/* verbs_eval.c: trainer eval: held-out loss and accuracy of a folder with weights. */
#include <inttypes.h>
#include <stdio.h>

#include "common/log.h"
#include "trainer/eval/evaluate.h"
#include "trainer/verbs.h"

status verb_eval(int argc, char **argv)
{
    conf c;
    session s = {0};
    status st = conf_load(&c, &argc, argv);
    if (st != ST_OK)
        return st;
    log_init("trainer", c.log_level, c.log_json);
    if (argc > 1) {
        st = FAIL(ST_USAGE, "trainer eval does not know \"%s\"; see trainer eval --help", argv[1]);
        goto done;
    }
    TRY_OR(done, session_open(&c, SESSION_EVAL, &s));
    evaluation e;
    TRY_OR(done, evaluate(&s, true, c.eval_show, &e));
    session_check_first_loss(&s, e.loss);
    printf("eval: loss: %.4f  accuracy: %.1f%% of %" PRId64
           " documents  images swapped: %.1f%% of %" PRId64 "  seconds: %.1f\n",
           e.loss, evaluation_percent(e.right, e.documents), e.documents,
           evaluation_percent(e.swapped_right, e.swapped_documents), e.swapped_documents,
           e.seconds);
    if (e.vqa.all.n) {
        printf("vqa: accuracy: %.2f%% of %" PRId64 " questions\n", vqa_share_percent(&e.vqa.all),
               e.vqa.all.n);
        vqa_tally_print(&e.vqa, stdout);
    }
done:
    session_close(&s);
    conf_done(&c);
    return st;
}
