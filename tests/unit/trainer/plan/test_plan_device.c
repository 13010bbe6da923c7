/* SPDX-License-Identifier: Apache-2.0 */
/* test_plan_device.c: the device that is planned for: one that is named, and one that is open.
 * Part of test_memory. */
#include "tests/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/trainer/plan/memory_tests.h"
#include "trainer/plan/plan_device.h"

static void test_device__is_named(void **state)
{
    (void)state;
    plan_device on;
    assert_ok(plan_device_named("h100", &on));
    assert_true(on.memory < 85e9 && !plan_device_is_cpu(&on));
    assert_ok(plan_device_named("80000000000", &on));
    assert_true(on.memory == 80e9 && on.sizes->act == DT_BF16);
    assert_true(on.cudnn && on.is_nearest && strcmp(on.card->word, "h100") == 0);
    assert_ok(plan_device_named("24000000000", &on)); /* as an RTX 4090 */
    assert_true(!on.cudnn && on.sm == 89 && on.is_nearest);
    assert_ok(plan_device_named("RTX4090", &on));
    assert_true(!on.cudnn && !on.is_nearest && on.memory > 24e9);
    assert_ok(plan_device_named("5000000000000", &on));
    assert_true(!on.card && on.cudnn);
    assert_ok(plan_device_named("cpu", &on));
    assert_true(plan_device_is_cpu(&on) && on.memory > 1e8);
    assert_fails(ST_USAGE, plan_device_named("v100", &on),
                 "expected cpu, a GPU's memory in bytes, or one of h200, h100, ");
    assert_fails(ST_USAGE, plan_device_named("-5", &on), "--device -5: expected ");
    assert_fails(ST_USAGE, plan_device_named("", &on), "expected cpu");
}

static void expect_card_line(const plan_device *on, const char *expected)
{
    char *text = NULL;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    plan_device_print_card(on, to);
    fclose(to);
    assert_string_equal(text, expected);
    free(text);
}

/* Whose rates a GPU gets that is not known by name is said. */
static void test_device__whose_rates_are_taken_is_said(void **state)
{
    (void)state;
    plan_device on = plan_device_sized(25.0 * 1073741824);
    expect_card_line(&on, "GPU of 25.0 GiB is not a card known by name; it is planned like the "
                          "nearest in size, the RTX 4090 of 24 GB\n");
    on = plan_device_sized(1073741824);
    expect_card_line(&on, "GPU of 1.0 GiB is not a card known by name; no known card is about as "
                          "large, so there are no rates for it, and memory is planned for cuDNN's "
                          "attention, which takes most\n");
    assert_ok(plan_device_named("l40s", &on));
    expect_card_line(&on, "");
    assert_ok(plan_device_named("cpu", &on));
    expect_card_line(&on, "");
}

/* What a device that is there says of itself. */
static size_t said_used, said_total, said_available;

static status say_memory(device *dev, size_t *out_used, size_t *out_total)
{
    (void)dev;
    *out_used = said_used;
    *out_total = said_total;
    return ST_OK;
}

static status say_available(device *dev, size_t *out)
{
    (void)dev;
    *out = said_available;
    return ST_OK;
}

/* What others hold is not usable, and what this process holds already is;
 * ranks have equal parts. */
static void test_device__others_and_sharers_are_taken_off(void **state)
{
    (void)state;
    const backend_vtable gpu = {.memory = say_memory, .available = say_available};
    backend_vtable cpu = gpu;
    cpu.immediate = true;
    device dev = {.backend = &gpu,
                  .multiprocessors = 77,
                  .context_bytes = 500,
                  .used_at_open = 29000,
                  .description = "NVIDIA H200, sm_90"};
    plan_device on;
    plan_room room;
    char text[PLAN_DEVICE_TEXT];
    said_total = 100000;
    said_used = 30000; /* of a GPU this is everyone's */
    said_available = 70000;
    assert_ok(plan_device_opened(&dev, &on, &room));
    assert_true(on.memory == 100000 && on.usable == 71500);
    assert_true(room.own == 500 && room.grown == 1000);
    assert_int_equal(on.multiprocessors, 77); /* not those that an H200 has */
    assert_string_equal(on.name, "NVIDIA H200");
    assert_true(on.cudnn && on.sm == 90);
    dev.choices.way[CHOICE_TEXT_BACKWARD] = ATTENTION_BY_OURS;
    dev.choices.way[CHOICE_VISION_BACKWARD] = ATTENTION_BY_OURS;
    assert_ok(plan_device_opened(&dev, &on, &room));
    assert_true(!on.cudnn);
    plan_device_share(&on, 3);
    plan_device_share(&on, 3);
    assert_true(fabs(on.usable - 71500.0 / 3) < 1e-6 && on.sharers == 3 && on.memory == 100000);
    dev.backend = &cpu;
    assert_ok(plan_device_opened(&dev, &on, NULL)); /* of a CPU it is this process's */
    assert_true(on.usable == 100000 && plan_device_is_cpu(&on));
    said_available = 20000;
    assert_ok(plan_device_opened(&dev, &on, NULL));
    assert_true(on.usable == 50000);
    on.memory = 4.0 * 1073741824;
    on.usable = 3.0 * 1073741824;
    assert_string_equal(plan_device_text(&on, text), "3.0 of 4.0 GiB are free");
    plan_device_share(&on, 2);
    assert_string_equal(plan_device_text(&on, text),
                        "3.0 of 4.0 GiB are free, for 2 ranks: 1.5 GiB each");
}

int run_plan_device_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device__is_named),
        cmocka_unit_test(test_device__whose_rates_are_taken_is_said),
        cmocka_unit_test(test_device__others_and_sharers_are_taken_off),
    };
    return cmocka_run_group_tests_name("plan device", tests, NULL, NULL);
}
