/* SPDX-License-Identifier: Apache-2.0 */
/* test_schedule.c: the learning rate at the corners of every shape: warm-up, decay and floor. */
#include "tests/harness.h"

#include <math.h>

#include "common/conf/conf.h"
#include "trainer/optim/optim.h"

static void expect_equal(double value, double wanted)
{
    if (fabs(value - wanted) > 1e-12)
        fail_msg("%.15g is not %.15g", value, wanted);
}

static void test_schedule__warmup_is_linear_from_zero(void **state)
{
    (void)state;
    schedule rates = {.peak = 2.0, .steps = 100, .warmup_steps = 10, .decay_ratio = 1.0};
    expect_equal(schedule_lr(&rates, 1), 0.2);
    expect_equal(schedule_lr(&rates, 5), 1.0);
    expect_equal(schedule_lr(&rates, 10), 2.0);
}

static void test_schedule__first_step_without_warmup_is_the_peak(void **state)
{
    (void)state;
    schedule rates = {.peak = 3.0, .steps = 0, .decay_type = DECAY_COSINE, .decay_ratio = 1.0};
    expect_equal(schedule_lr(&rates, 1), 3.0);
    expect_equal(schedule_lr(&rates, 1000000), 3.0); /* without a known end there is no decay */
}

static void test_schedule__shapes_end_at_the_floor(void **state)
{
    (void)state;
    for (int type = DECAY_LINEAR; type <= DECAY_SQRT; type++) {
        schedule rates = {.peak = 1.0,
                          .steps = 110,
                          .warmup_steps = 10,
                          .decay_ratio = 1.0,
                          .decay_type = type,
                          .min_factor = 0.1};
        expect_equal(schedule_lr(&rates, 110), 0.1);
        expect_equal(schedule_lr(&rates, 200), 0.1);
        double before = schedule_lr(&rates, 10);
        for (int64_t step = 11; step <= 110; step++) {
            double now = schedule_lr(&rates, step);
            assert_true(now < before);
            before = now;
        }
    }
    schedule half = {.peak = 1.0, .steps = 100, .decay_ratio = 1.0, .decay_type = DECAY_COSINE};
    expect_equal(schedule_lr(&half, 50), 0.5);
    half.decay_type = DECAY_LINEAR;
    expect_equal(schedule_lr(&half, 25), 0.75);
}

static void test_schedule__stable_then_decay(void **state)
{
    (void)state;
    schedule rates = {.peak = 1.0,
                      .steps = 100,
                      .warmup_steps = 10,
                      .decay_ratio = 0.2,
                      .decay_type = DECAY_LINEAR};
    expect_equal(schedule_lr(&rates, 11), 1.0);
    expect_equal(schedule_lr(&rates, 80), 1.0);
    expect_equal(schedule_lr(&rates, 90), 0.5);
    expect_equal(schedule_lr(&rates, 100), 0.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedule__warmup_is_linear_from_zero),
        cmocka_unit_test(test_schedule__first_step_without_warmup_is_the_peak),
        cmocka_unit_test(test_schedule__shapes_end_at_the_floor),
        cmocka_unit_test(test_schedule__stable_then_decay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
