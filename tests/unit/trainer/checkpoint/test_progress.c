/* test_progress.c: the state of a run is read as it was written, to the bit; an early trainer's,
 * which has no shares of units, is read without them, and impossible shares are refused. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/checkpoint/progress.h"

static const char early[] =
    "{\"version\":1,\"step\":7,\"rows\":9,\"first_loss\":2.5,\"last_loss\":1.5,\"clip_norm\":3.25,"
    "\"cursor\":\"\",\"stream_options\":\"\",\"config\":\"a: 1\"%s}";

static status parse_with(const char *more, progress *out)
{
    char text[512];
    snprintf(text, sizeof text, early, more);
    return progress_parse(text, "state.json", out);
}

static void test_progress__is_read_as_it_was_written(void **state)
{
    (void)state;
    double share[] = {0.1, 0, 1.0 / 3, 5e-324};
    progress now = {.step = 7, .rows = 9, .earlier_steps = 4, .first_loss = 2.5}, copy = {0},
             back = {0};
    char *text;
    assert_ok(progress_set_shares(&now, share, 4));
    assert_ok(progress_copy(&now, &copy));
    assert_ok(progress_text(&copy, &text));
    assert_ok(progress_parse(text, "state.json", &back));
    assert_int_equal(back.step, 7);
    assert_int_equal(back.earlier_steps, 4);
    assert_int_equal(back.n_units, 4);
    assert_memory_equal(back.unit_share, share, sizeof share);
    free(text);
    assert_ok(progress_set_shares(&back, NULL, 0)); /* a step without units */
    assert_ok(progress_text(&back, &text));
    assert_true(back.unit_share == NULL && !strstr(text, "unit_share"));
    free(text);
    progress_done(&now);
    progress_done(&copy);
    progress_done(&back);
}

static void test_progress__an_early_one_has_no_shares(void **state)
{
    (void)state;
    progress back = {0};
    assert_ok(parse_with("", &back));
    assert_true(back.step == 7 && back.earlier_steps == 0);
    assert_true(back.n_units == 0 && back.unit_share == NULL);
    progress_done(&back);
}

static void test_progress__impossible_earlier_steps_are_refused(void **state)
{
    (void)state;
    progress back = {0};
    assert_int_equal(parse_with(",\"earlier_steps\":8", &back), ST_BAD_INPUT);
    assert_int_equal(parse_with(",\"earlier_steps\":-1", &back), ST_BAD_INPUT);
}

static void test_progress__impossible_shares_are_refused(void **state)
{
    (void)state;
    const char *const bad[] = {",\"unit_share\":[0.5,-0.1]", ",\"unit_share\":[0.5,\"x\"]",
                               ",\"unit_share\":[1e300]", ",\"unit_share\":0.5"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        progress back = {0};
        assert_int_equal(parse_with(bad[i], &back), ST_BAD_INPUT);
        assert_true(back.config == NULL && back.unit_share == NULL);
        assert_non_null(strstr(status_text(), "unit_share"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_progress__is_read_as_it_was_written),
        cmocka_unit_test(test_progress__an_early_one_has_no_shares),
        cmocka_unit_test(test_progress__impossible_earlier_steps_are_refused),
        cmocka_unit_test(test_progress__impossible_shares_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
