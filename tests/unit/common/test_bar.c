/* SPDX-License-Identifier: Apache-2.0 */
/* bar.h: the text of a progress bar. What a terminal shows is tested in
 * tests/flow/terminal_bars.py. */
#include "tests/harness.h"

#include <string.h>

#include "common/base/clock.h"
#include "common/program/bar.h"

static void test_line__fits_its_terminal(void **state)
{
    (void)state;
    static const struct {
        double share;
        const char *words;
        int columns;
        const char *line;
    } cases[] = {
        {0.5, "step 15 of 30, 1:05 left", 80,
         "[###############---------------] step 15 of 30, 1:05 left"},
        {1.0 / 3, "step 1 of 3, 1:05 left", 40, "[####----------] step 1 of 3, 1:05 left"},
        {1.0, "done", 14, "[######] done"},
        {1.5, "done", 14, "[######] done"}, /* a total that was too low */
        {-1.0, "step 7", 40, "step 7"},
        {0.03, "step 100 of 3000, 1:05 left", 24, "step 100 of 3000, 1:05 "},
        {1.0, "step 3 of 3", 10, "step 3 of"},
        {1.0, "step 3 of 3", 1, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[200];
        bar_line(cases[i].share, cases[i].words, cases[i].columns, line, sizeof line);
        assert_string_equal(line, cases[i].line);
        assert_true(strlen(line) < (size_t)cases[i].columns);
    }
}

static void test_time__is_as_on_a_clock(void **state)
{
    (void)state;
    static const struct {
        double seconds;
        const char *text;
    } cases[] = {{0, "0:00"}, {65.9, "1:05"}, {3599, "59:59"}, {3600, "1:00:00"}, {-1, "0:00"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[BAR_TIME];
        assert_string_equal(bar_time(cases[i].seconds, text), cases[i].text);
    }
}

static void test_seconds_left__go_on_at_the_same_pace(void **state)
{
    (void)state;
    const int64_t began_ns = clock_ns() - 10000000000;
    assert_true(bar_seconds_left(began_ns, 0, 8) < 0);
    assert_float_equal(bar_seconds_left(began_ns, 2, 8), 30, 1);
    assert_float_equal(bar_seconds_left(began_ns, 8, 8), 0, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_line__fits_its_terminal),
        cmocka_unit_test(test_time__is_as_on_a_clock),
        cmocka_unit_test(test_seconds_left__go_on_at_the_same_pace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
