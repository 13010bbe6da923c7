/* SPDX-License-Identifier: Apache-2.0 */
/* test_spike.c: which loss counts as a spike: one bad batch, but neither a falling loss nor a climb
 * of several steps. The recorded losses are those of configs/smoke.yaml, whose warm-up is 50 steps:
 * a step on a line, and training.seed 1, 2 and 3, a column each. */
#include "tests/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/compare.h"
#include "trainer/report/spike.h"

enum { SEEDS = 3, STEPS = 1500, WARMUP = 50 };

static double recorded[SEEDS][STEPS];

static int read_losses(void **state)
{
    (void)state;
    const char *source = getenv("TESSERA_SOURCE");
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/unit/trainer/report/smoke_losses.txt",
             source ? source : ".");
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    for (int step = 0; step < STEPS; step++)
        for (int seed = 0; seed < SEEDS; seed++)
            assert_int_equal(fscanf(file, "%lf", &recorded[seed][step]), 1);
    fclose(file);
    return 0;
}

/* Counts the leaps after the warm-up. *out_last: the step of the last one, from 1. */
static int count_leaps(const double *loss, int *out_last)
{
    spike judge = {0};
    double median;
    int leaps = 0;
    for (int step = WARMUP + 1; step <= STEPS; step++)
        if (spike_add(&judge, loss[step - 1], &median)) {
            leaps++;
            *out_last = step;
        }
    return leaps;
}

static void test_spike__ordinary_training_has_none(void **state)
{
    (void)state;
    for (int seed = 0; seed < SEEDS; seed++) {
        int step = 0, leaps = count_leaps(recorded[seed], &step);
        if (leaps)
            fail_msg("seed %d: %d leaps, the last in step %d", seed + 1, leaps, step);
    }
}

static double median_before(const double *loss, int step)
{
    double list[SPIKE_WINDOW];
    for (int i = 0; i < SPIKE_WINDOW; i++)
        list[i] = loss[step - 2 - i];
    qsort(list, SPIKE_WINDOW, sizeof *list, compare_reals);
    return (list[SPIKE_WINDOW / 2 - 1] + list[SPIKE_WINDOW / 2]) / 2;
}

/* One batch at five times the running median, in the middle of an ordinary run. */
static void test_spike__a_bad_batch_is_told_once(void **state)
{
    (void)state;
    for (int seed = 0; seed < SEEDS; seed++)
        for (int at = 120; at <= 240; at += 30) {
            const double was = recorded[seed][at - 1];
            int step = 0;
            recorded[seed][at - 1] = 5.0 * median_before(recorded[seed], at);
            const int leaps = count_leaps(recorded[seed], &step);
            recorded[seed][at - 1] = was;
            if (leaps != 1 || step != at)
                fail_msg("seed %d, batch %d: %d leaps, the last in step %d", seed + 1, at, leaps,
                         step);
        }
}

static void test_spike__a_leap_and_what_follows_it(void **state)
{
    (void)state;
    double median = 0.0;
    spike judge = {0};
    for (int i = 0; i < SPIKE_LEAST; i++) /* nothing to compare with */
        assert_false(spike_add(&judge, i == 20 ? 99.0 : 2.0 + 0.1 * sin(i), &median));
    assert_false(spike_add(&judge, 3.9, &median)); /* far in deviations, but not twice the median */
    assert_false(spike_add(&judge, 2.0, &median));
    assert_true(spike_add(&judge, 10.0, &median));
    assert_true(fabs(median - 2.0) < 0.1);
    assert_false(spike_add(&judge, 9.0, &median)); /* its consequence */
    assert_false(spike_add(&judge, NAN, &median));
    assert_false(spike_add(&judge, INFINITY, &median));
    assert_false(spike_add(&judge, 2.1, &median));
    assert_true(spike_add(&judge, 10.0, &median)); /* again, since the level did not move */
    for (int i = 0; i < SPIKE_WINDOW; i++)
        assert_false(spike_add(&judge, 10.0, &median)); /* a new level */
    assert_false(spike_add(&judge, 19.0, &median));
    assert_true(spike_add(&judge, 50.0, &median));
}

/* A climb that takes several steps is not the work of one batch. */
static void test_spike__a_climb_is_no_spike(void **state)
{
    (void)state;
    double median;
    spike judge = {0};
    for (int i = 0; i < 100; i++)
        assert_false(spike_add(&judge, 1.0, &median));
    for (double loss = 1.0; loss < 100.0; loss *= 1.9)
        assert_false(spike_add(&judge, loss, &median));
}

static void test_spike__a_falling_loss_is_no_spike(void **state)
{
    (void)state;
    double median;
    spike judge = {0};
    for (int i = 0; i < 200; i++) /* a warm-up's loss, falling fast, with noise */
        assert_false(spike_add(&judge, 8.0 * exp(-i / 50.0) + 0.05 * (i % 3), &median));
    for (int i = 0; i < 100; i++) /* to nothing at all */
        assert_false(spike_add(&judge, 0.0, &median));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spike__ordinary_training_has_none),
        cmocka_unit_test(test_spike__a_bad_batch_is_told_once),
        cmocka_unit_test(test_spike__a_leap_and_what_follows_it),
        cmocka_unit_test(test_spike__a_climb_is_no_spike),
        cmocka_unit_test(test_spike__a_falling_loss_is_no_spike),
    };
    return cmocka_run_group_tests(tests, read_losses, NULL);
}
