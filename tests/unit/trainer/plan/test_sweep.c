/* SPDX-License-Identifier: Apache-2.0 */
/* test_sweep.c: the layouts of trainer plan --sweep. Part of test_cost. */
#include "tests/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/trainer/plan/plan_setting.h"
#include "trainer/plan/cost.h"

static void test_sweep__fastest_that_fits_first(void **state)
{
    (void)state;
    setting setup;
    char *text = NULL;
    size_t size;
    open_setting(&setup, "qwen3-30b-a3b");
    const plan_input in = input_of(&setup, NULL);
    FILE *to = open_memstream(&text, &size);
    assert_ok(sweep_layouts(&in, 8, &setup.speeds, 50, to));
    fclose(to);
    double before = INFINITY;
    int count = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        long long degree[7], rows;
        double memory, ms, tps, mfu;
        char mode[8];
        assert_null(strstr(line, "portable kernel"));
        if (sscanf(line, "%lld %lld %lld %lld %lld %lld %lld %lld %7s %lf%% %lf %lf %lf%%",
                   &degree[0], &degree[1], &degree[2], &degree[3], &degree[4], &degree[5],
                   &degree[6], &rows, mode, &memory, &ms, &tps, &mfu) != 13)
            continue;
        count++;
        assert_int_equal(degree[0] * degree[1] * degree[2] * degree[3] * degree[4], 8);
        assert_int_equal(32 % (degree[0] * degree[1] * rows), 0);
        assert_true(memory <= 85.05 && tps <= before);
        before = tps;
    }
    assert_true(count > 5);
    free(text);
    setup.speeds.sm = 80;
    to = open_memstream(&text, &size);
    assert_ok(sweep_layouts(&in, 8, &setup.speeds, 1, to));
    fclose(to);
    assert_non_null(strstr(text, "\n  the experts' products use the portable kernel"));
    free(text);
    setup.device.memory = setup.device.usable = 1e9;
    to = open_memstream(&text, &size);
    assert_fails(ST_CONFIG, sweep_layouts(&in, 8, &setup.speeds, 50, to),
                 "more ranks or shorter rows");
    fclose(to);
    free(text);
    close_setting(&setup);
}

int run_sweep_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sweep__fastest_that_fits_first),
    };
    return cmocka_run_group_tests_name("sweep", tests, NULL, NULL);
}
