/* SPDX-License-Identifier: Apache-2.0 */
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
    assert_ok(recompute_plan_of(&in, 1, &recomputed));
    assert_int_equal(recomputed.text.what,
                     RECOMPUTE_CHEAP | RECOMPUTE_QKV | RECOMPUTE_PROJ | RECOMPUTE_FC2);
    assert_string_equal(recompute_plan_text(&recomputed.text, text),
                        "selective: keeps attention, fc1");
    setup.options.activation_checkpoint_save = "none";
    assert_ok(recompute_plan_of(&in, 1, &recomputed));
    assert_string_equal(recompute_plan_text(&recomputed.text, text),
                        "selective: keeps router outputs only");
    setup.options.activation_checkpoint_selective_ac_option = "3";
    assert_ok(recompute_plan_of(&in, 1, &recomputed));
    assert_int_equal(recompute_of(&recomputed.text, 1), 0);
    assert_int_equal(recompute_of(&recomputed.text, 2), RECOMPUTE_ALL);
    assert_int_equal(recompute_plan_kept(&recomputed.vision, 27, RECOMPUTE_QKV), 18);
    assert_string_equal(recompute_plan_text(&recomputed.text, text),
                        "selective: of layers 3, 6, ..");
    close_setting(&setup);
}

/* How many times the head's time a decoder layer takes. Two stages have n layers each and the
 * second has the head: the slower one is off the mean by (n layer + head) / (n layer + head / 2).
 */
static double layer_over_head(int64_t experts, int mode)
{
    enum { EACH = 2 };
    setting setup;
    layout degrees;
    double uneven;
    open_setting(&setup, "qwen3-30b-a3b");
    setup.dims.text.layers = 2 * EACH;
    setup.options.parallelism_world_size = 8;
    setup.options.parallelism_pipeline_parallel_degree = 2;
    setup.options.parallelism_pipeline_parallel_split_points = "layers.2";
    setup.options.parallelism_expert_parallel_degree = experts;
    setup.options.activation_checkpoint_mode = mode;
    assert_ok(layout_of(&setup.options, NULL, &degrees));
    assert_ok(stage_plan(&setup.options, &setup.dims, setup.registry, &degrees));
    assert_ok(stage_plan_uneven(&setup.options, &setup.dims, setup.registry, &degrees, &uneven));
    close_setting(&setup);
    return (1 - uneven / 2) / (uneven - 1) / EACH;
}

/* Experts that ranks share make their first product once more in every backward pass, whatever is
 * recomputed: a layer takes longer by that when stages are balanced. */
static void test_recompute__stages_count_what_shared_experts_repeat(void **state)
{
    (void)state;
    const rates speeds = rates_h200();
    const double first = 2.0 * 8 * 2048 * 768 / speeds.of[RATE_EXPERTS],
                 head = 3.0 * 2048 * 151936 * 8191 / 8192 /
                        speeds.of[RATE_DENSE]; /* a token is none of the targets */
    expect_share(layer_over_head(4, AC_NONE) - layer_over_head(1, AC_NONE), first / head, 1e-6);
    expect_share(layer_over_head(4, AC_FULL) - layer_over_head(1, AC_FULL), first / head, 1e-6);
}

int run_recompute_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recompute__keeps_what_fits),
        cmocka_unit_test(test_recompute__options_decide),
        cmocka_unit_test(test_recompute__stages_count_what_shared_experts_repeat),
    };
    return cmocka_run_group_tests_name("recompute", tests, NULL, NULL);
}
