/* test_plan_device.c: the device that is planned for: one that is named, and one that is open.
 * Part of test_memory. */
#include "tests/harness.h"

#include <math.h>
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
    assert_ok(plan_device_named("cpu", &on));
    assert_true(plan_device_is_cpu(&on) && on.memory > 1e8);
    assert_fails(ST_USAGE, plan_device_named("v100", &on),
                 "expected a100, h100, h200, b200, cpu, or ");
    assert_fails(ST_USAGE, plan_device_named("-5", &on), "--device -5: expected ");
    assert_fails(ST_USAGE, plan_device_named("", &on), "expected a100");
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

/* What others hold is not usable, and what this process holds already is; ranks have equal parts.
 */
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
        cmocka_unit_test(test_device__others_and_sharers_are_taken_off),
    };
    return cmocka_run_group_tests_name("plan device", tests, NULL, NULL);
}
