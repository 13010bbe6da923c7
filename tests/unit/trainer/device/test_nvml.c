/* SPDX-License-Identifier: Apache-2.0 */
/* test_nvml.c: which GPU a plan is made for, or why there is none, asked of a library that stands
 * in for NVML. */
#include "tests/harness.h"

#include <stdlib.h>
#include <string.h>

#include "common/conf/conf.h"
#include "trainer/device/nvml.h"
#include "trainer/plan/plan_device.h"

static const double GIB = 1073741824.0;

/* Sets a variable; value NULL: unsets it. */
static void set(const char *name, const char *value)
{
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

static void test_nvml__shows_the_first_visible(void **state)
{
    (void)state;
    const struct {
        const char *list, *name;
        int visible;
    } cases[] = {{NULL, "NVIDIA DOUBLE-0", 4},
                 {"2", "NVIDIA DOUBLE-2", 1},
                 {"3,1", "NVIDIA DOUBLE-3", 2},
                 {"1, 0,9,2", "NVIDIA DOUBLE-1", 2},
                 {"GPU-30000000-0000-0000-0000-000000000000", "NVIDIA DOUBLE-3", 1},
                 {"GPU-2,GPU-1,0", "NVIDIA DOUBLE-2", 3},
                 {"MIG-of-1", "NVIDIA DOUBLE-1", 1}};
    set("NVML_DOUBLE_GPUS", "4");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        nvml_gpu gpu;
        set("CUDA_VISIBLE_DEVICES", cases[i].list);
        assert_ok(nvml_first_visible(&gpu));
        assert_int_equal(gpu.sm, 86);
        assert_string_equal(gpu.name, cases[i].name);
        assert_int_equal(gpu.visible, cases[i].visible);
        const size_t gib = 80 + (size_t)(gpu.name[strlen(gpu.name) - 1] - '0');
        assert_int_equal(gpu.memory >> 30, gib - 1);
        assert_int_equal(gpu.unused >> 30, gib - 11);
    }
}

static void test_nvml__says_why_there_is_none(void **state)
{
    (void)state;
    static const char *const none[] = {"", "-1", "4", "4,0", "GPU-7", "NoDevFiles"};
    nvml_gpu gpu;
    set("NVML_DOUBLE_GPUS", "4");
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        char words[64];
        snprintf(words, sizeof words, "CUDA_VISIBLE_DEVICES is \"%s\", which names none of",
                 none[i]);
        set("CUDA_VISIBLE_DEVICES", none[i]);
        assert_fails(ST_UNAVAILABLE, nvml_first_visible(&gpu), words);
    }
    set("CUDA_VISIBLE_DEVICES", NULL);
    set("NVML_DOUBLE_GPUS", "0");
    assert_fails(ST_UNAVAILABLE, nvml_first_visible(&gpu), "the driver shows no GPU");
    set("NVML_DOUBLE_GPUS", NULL);
    assert_fails(ST_UNAVAILABLE, nvml_first_visible(&gpu),
                 "NVML cannot be started: Driver Not Loaded");
}

/* The plan for this machine is made for the visible GPU, with the memory that other processes leave
 * of it; ranks share a GPU only over MPI. Without a GPU it is made for an H200, and says why. */
static void test_plan_device__is_the_visible_gpu(void **state)
{
    (void)state;
    char why[PLAN_DEVICE_WHY];
    plan_device on;
    conf options = {.training_backend = BACKEND_AUTO, .comm_engine = ENGINE_AUTO};
    set("NVML_DOUBLE_GPUS", "4");
    set("CUDA_VISIBLE_DEVICES", "1,2");
    assert_ok(plan_device_here(&options, 8, &on, why));
    assert_string_equal(on.name, "NVIDIA DOUBLE-1");
    assert_string_equal(why, "");
    assert_true(on.memory == 80 * GIB && on.usable == 70 * GIB && on.sharers == 1);
    options.comm_engine = ENGINE_MPI;
    assert_ok(plan_device_here(&options, 5, &on, why));
    assert_true(on.memory == 80 * GIB && on.usable == 70 * GIB / 3 && on.sharers == 3);
    set("CUDA_VISIBLE_DEVICES", "9");
    assert_ok(plan_device_here(&options, 1, &on, why));
    assert_string_equal(on.name, "H200");
    assert_non_null(strstr(why, "no GPU was found here: CUDA_VISIBLE_DEVICES is \"9\""));
    assert_non_null(strstr(why, "--device names another one"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nvml__shows_the_first_visible),
        cmocka_unit_test(test_nvml__says_why_there_is_none),
        cmocka_unit_test(test_plan_device__is_the_visible_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
