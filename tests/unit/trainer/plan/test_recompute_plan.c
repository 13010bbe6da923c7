/* test_recompute_plan.c: what activation checkpointing keeps, by memory.limit and by options. Part
 * of test_cost. */
#include "tests/harness.h"

#include <string.h>

#include "tests/unit/trainer/plan/plan_setting.h"
#include "trainer/plan/layout_plan.h"
#include "trainer/plan/recompute_plan.h"

/* What mode `op` keeps fills memory.limit: one more layer would not fit, and a higher limit keeps
 * more. */
static void test_recompute__keeps_what_fits(void **state)
{
    (void)state;
    setting setup;
    layout degrees;
    memory_plan planned;
    recomputes recomputed, more;
    char text[RECOMPUTE_TEXT_MAX];
    open_setting(&setup, "qwen3-vl-30b-a3b");
    setup.options.activation_checkpoint_mode = AC_SELECTIVE;
    setup.options.parallelism_data_parallel_shard_degree = 8;
    setup.options.training_global_batch_size = 32;
    setup.options.training_local_batch_size = 4;
    assert_ok(layout_of(&setup.options, NULL, &degrees));
    const plan_input in = input_of(&setup, &degrees);
    double before = 0;
    for (int percent = 84; percent <= 98; percent += 7) {
        setup.options.memory_limit = percent / 100.0;
        const double most = setup.options.memory_limit * setup.device.usable;
        assert_ok(recompute_plan_of(&in, 4, &recomputed));
        assert_ok(layout_plan_make(&in, 4, &recomputed, &planned));
        print_message("%d %%: %s", percent, recompute_plan_text(&recomputed.text, text));
        print_message("; vision %s\n", recompute_plan_text(&recomputed.vision, text));
        assert_true((double)planned.total <= most && (double)planned.total > before);
        assert_true((recomputed.text.layers > 0) != (recomputed.vision.layers > 0));
        more = recomputed;
        (recomputed.text.layers > 0 ? &more.text : &more.vision)->layers++;
        before = (double)planned.total;
        assert_ok(layout_plan_make(&in, 4, &more, &planned));
        assert_true((double)planned.total > most);
    }
    /* Where everything fits, all products are kept; only norms and activations are recomputed. */
    setup.options.training_seq_len = 256;
    assert_ok(recompute_plan_of(&in, 1, &recomputed));
    assert_int_equal(recomputed.text.what, RECOMPUTE_CHEAP);
    assert_int_equal(recomputed.vision.what & ~RECOMPUTE_FC2, RECOMPUTE_CHEAP);
    assert_string_equal(recompute_plan_text(&recomputed.text, text),
                        "selective: keeps qkv, attention, proj, fc1, fc2");
    close_setting(&setup);
}

static void test_recompute__options_decide(void **state)
{
    (void)state;
    setting setup;
    layout degrees;
    recomputes recomputed;
    char text[RECOMPUTE_TEXT_MAX];
    open_setting(&setup, "qwen3-vl-30b-a3b");
    assert_ok(layout_of(&setup.options, NULL, &degrees));
    const plan_input in = input_of(&setup, &degrees);
    setup.options.activation_checkpoint_mode = AC_SELECTIVE;
    setup.options.activation_checkpoint_save = "attention, fc1";
    setup.options.activation_checkpoint_vision_mode = AC_VISION_FULL;
    assert_ok(recompute_plan_of(&in, 1, &recomputed));
    assert_int_equal(recomputed.text.what,
                     RECOMPUTE_CHEAP | RECOMPUTE_QKV | RECOMPUTE_PROJ | RECOMPUTE_FC2);
    assert_int_equal(recomputed.vision.what, RECOMPUTE_ALL);
    assert_string_equal(recompute_plan_text(&recomputed.text, text),
                        "selective: keeps attention, fc1");
    setup.options.activation_checkpoint_save = "none";
    setup.options.activation_checkpoint_vision_mode = AC_VISION_NONE;
    assert_ok(recompute_plan_of(&in, 1, &recomputed));
    assert_string_equal(recompute_plan_text(&recomputed.text, text),
                        "selective: keeps routes alone");
    assert_int_equal(recomputed.vision.what, 0);
    setup.options.activation_checkpoint_selective_ac_option = "3";
    setup.options.activation_checkpoint_vision_mode = AC_VISION_SAME;
    assert_ok(recompute_plan_of(&in, 1, &recomputed));
    assert_int_equal(recompute_of(&recomputed.text, 1), 0);
    assert_int_equal(recompute_of(&recomputed.text, 2), RECOMPUTE_ALL);
    assert_int_equal(recompute_plan_kept(&recomputed.vision, 27, RECOMPUTE_QKV), 18);
    assert_string_equal(recompute_plan_text(&recomputed.text, text),
                        "selective: of layers 3, 6, ..");
    close_setting(&setup);
}

int run_recompute_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recompute__keeps_what_fits),
        cmocka_unit_test(test_recompute__options_decide),
    };
    return cmocka_run_group_tests_name("recompute", tests, NULL, NULL);
}
