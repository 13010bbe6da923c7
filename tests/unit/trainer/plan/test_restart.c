/* test_restart.c: the predicted time from a crash to the next step is bytes over rates, and says
 * what the options leave out. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/trainer/plan/plan_setting.h"
#include "trainer/optim/groups.h"
#include "trainer/plan/recompute_plan.h"
#include "trainer/plan/restart.h"

static conf options;
static model_dims dims;
static params *registry;
static plan_device card;

static int setup(void **unused)
{
    char name[] = "trainer", *argv[] = {name, NULL};
    int argc = 1;
    (void)unused;
    assert_ok(conf_load(&options, &argc, argv));
    options.training_seq_len = 8192;
    options.training_global_batch_size = 32;
    options.training_local_batch_size = 1;
    options.parallelism_world_size = 32;
    options.checkpoint_enable = true;
    assert_ok(dims_preset("qwen3-vl-30b-a3b", &dims));
    assert_ok(params_new(&dims, &registry));
    assert_ok(plan_device_named("h200", &card));
    return 0;
}

static int teardown(void **unused)
{
    (void)unused;
    params_free(&registry);
    conf_done(&options);
    return 0;
}

static restart_plan predict(const rates *speeds)
{
    layout degrees;
    recomputes again;
    restart_plan plan;
    assert_ok(layout_of(&options, NULL, &degrees));
    const plan_input in = {
        .conf = &options, .layout = &degrees, .dims = &dims, .params = registry, .device = &card};
    assert_ok(recompute_plan_of(&in, 1, &again));
    assert_ok(restart_plan_make(&in, &again, speeds, &plan));
    return plan;
}

static void test_restart__bytes_over_rates(void **unused)
{
    rates speeds = rates_h200();
    (void)unused;
    const restart_plan plan = predict(&speeds);
    expect_share(plan.bytes, 12.0 * (double)registry->total / 32, 0.01);
    expect_share(plan.copying, plan.bytes / speeds.of[RATE_HOST], 1e-12);
    expect_share(plan.from_memory, plan.bytes / speeds.of[RATE_HASH] + plan.copying, 1e-12);
    expect_share(plan.from_disk, 8 * plan.bytes / speeds.of[RATE_DISK] + plan.copying, 1e-12);
    speeds.of[RATE_DISK] /= 2;
    expect_share(predict(&speeds).from_disk - plan.copying, 2 * (plan.from_disk - plan.copying),
                 1e-9);
}

/* The text that is printed, in heap memory. */
static char *printed(const restart_plan *plan)
{
    char *text = NULL;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    assert_non_null(to);
    restart_print(&options, plan, 1.5, to);
    assert_int_equal(fclose(to), 0);
    return text;
}

static void test_restart__without_copies_only_the_disk_is_left(void **unused)
{
    const rates speeds = rates_h200();
    restart_plan plan = predict(&speeds);
    (void)unused;
    char *text = printed(&plan);
    assert_non_null(strstr(text, "from the copy in memory, at least"));
    assert_null(strstr(text, "frozen"));
    assert_non_null(strstr(text, "a copy every 100 steps takes 0.2"));
    free(text);
    options.checkpoint_memory_folder = "";
    plan = predict(&speeds);
    assert_true(plan.from_memory == 0 && plan.copying == 0 && plan.from_disk > 0);
    text = printed(&plan);
    assert_non_null(strstr(text, "a rank: at least"));
    assert_null(strstr(text, "memory"));
    free(text);
    options.checkpoint_enable = false;
    text = printed(&plan);
    assert_string_equal(text, "");
    free(text);
}

/* Adapters alone are copied, in the types of their states, and the base is read as at every
 * start. */
static void test_restart__the_base_is_read_again(void **unused)
{
    const rates speeds = rates_h200();
    (void)unused;
    options.lora_rank = 16;
    options.training_master = MASTER_BF16;
    assert_ok(groups_apply(&options, registry));
    const double trained = (double)params_trained(registry);
    const double frozen = (double)registry->total - trained;
    restart_plan plan = predict(&speeds);
    expect_share(plan.bytes, 10 * trained / 32, 0.05);
    expect_share(plan.frozen, 2 * frozen / 32, 0.01);
    expect_share(plan.reading, 8 * plan.frozen / speeds.of[RATE_DISK], 1e-12);
    char *text = printed(&plan);
    assert_non_null(
        strstr(text, "beside them 1.8 GiB of frozen values are read as at every start"));
    free(text);
    for (int64_t i = 0; i < registry->count; i++) /* codes are made of the same files */
        registry->list[i].form =
            registry->list[i].group == GROUP_EXPERTS ? WEIGHT_NF4 : WEIGHT_PLAIN;
    expect_share(predict(&speeds).frozen, plan.frozen, 1e-3);
}

/* This machine has room for the copies of one small rank, but not for those of millions. */
static void test_restart__says_that_there_is_no_room(void **unused)
{
    layout degrees;
    char *text = NULL;
    size_t size;
    (void)unused;
    options.checkpoint_enable = true;
    options.checkpoint_memory_folder = "/tmp";
    assert_ok(layout_of(&options, NULL, &degrees));
    const plan_input in = {
        .conf = &options, .layout = &degrees, .dims = &dims, .params = registry, .device = &card};
    FILE *to = open_memstream(&text, &size);
    assert_non_null(to);
    assert_ok(restart_print_room(&in, 1000000, to));
    assert_int_equal(fflush(to), 0);
    assert_non_null(strstr(text, "of 1000000 ranks take "));
    assert_non_null(strstr(text, "and /tmp has room for "));
    assert_non_null(strstr(text, "after a crash only the disk would be left"));
    const size_t before = size;
    assert_ok(restart_print_room(&in, 0, to));
    options.checkpoint_memory_folder = "";
    assert_ok(restart_print_room(&in, 1000000, to));
    assert_int_equal(fclose(to), 0);
    assert_int_equal(size, before);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_restart__bytes_over_rates, setup, teardown),
        cmocka_unit_test_setup_teardown(test_restart__without_copies_only_the_disk_is_left, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_restart__the_base_is_read_again, setup, teardown),
        cmocka_unit_test_setup_teardown(test_restart__says_that_there_is_no_room, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
