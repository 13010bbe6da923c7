/* SPDX-License-Identifier: Apache-2.0 */
/* test_progress.c: the state of a run is read as it was written, to the bit; a
 * state without shares of units is read without them, and impossible shares are refused. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/row/bad_samples.h"
#include "trainer/checkpoint/state/progress.h"

static const char sparse[] =
    "{\"version\":1,\"step\":7,\"rows\":9,\"first_loss\":2.5,\"last_loss\":1.5,\"clip_norm\":3.25,"
    "\"cursor\":\"\",\"stream_options\":\"\",\"recording\":\"\",\"choices\":\"\","
    "\"config\":\"a: 1\"%s}";

static status parse_with(const char *more, progress *out)
{
    char text[512];
    snprintf(text, sizeof text, sparse, more);
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

static void test_progress_without_shares__has_none(void **state)
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

static void write_file(const char *folder, const char *file, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    FILE *out = fopen(path, "we");
    assert_non_null(out);
    fputs(text, out);
    assert_int_equal(fclose(out), 0);
}

/* The list is a separate file, which state.json names. */
static void test_progress__names_its_quarantine(void **state)
{
    (void)state;
    static const char list[] = "{\"index\":\"0123456789abcdef0123456789abcdef\",\"count\":2,"
                               "\"ids\":\"CF\"}";
    char *folder = harness_temp();
    progress now = {.step = 7, .rows = 9}, back = {0};
    assert_ok(progress_set_text(&now.quarantine, list));
    assert_ok(progress_write(&now, folder));
    assert_ok(progress_read(folder, &back));
    assert_string_equal(back.quarantine, list);
    progress_done(&back);
    char *text; /* a copy in memory has it inside */
    assert_ok(progress_text(&now, &text));
    assert_ok(progress_parse(text, "a copy", &back));
    assert_string_equal(back.quarantine, list);
    progress_done(&back);
    free(text);
    write_file(folder, "quarantine.json", "{\"count\":1,\"ids\":\"C\"}");
    assert_fails(ST_BAD_INPUT, progress_read(folder, &back), "but state.json names");
    assert_ok(progress_set_text(&now.quarantine, ""));
    assert_ok(progress_write(&now, folder));
    assert_ok(progress_read(folder, &back)); /* no list, whatever is left of another */
    assert_string_equal(back.quarantine, "");
    progress_done(&back);
    progress_done(&now);
    harness_remove(&folder);
}

/* A state.json of the trainer of 2026-11-28, whose cursor and state have lists. */
static void test_progress__reads_what_an_earlier_trainer_wrote(void **state)
{
    (void)state;
    static const char golden[] =
        "{\"version\":1,\"step\":4,\"rows\":16,\"first_loss\":6.25,\"last_loss\":5.5,"
        "\"eval_loss\":null,\"cursor\":\"{\\\"stream\\\":\\\"train\\\",\\\"row\\\":16,"
        "\\\"step\\\":4,\\\"epoch\\\":0,\\\"window\\\":0,\\\"begin\\\":{\\\"epoch\\\":0,"
        "\\\"row\\\":0},\\\"plan\\\":3,\\\"index\\\":\\\"0123456789abcdef0123456789abcdef\\\","
        "\\\"quarantine\\\":[{\\\"id\\\":2,\\\"cause\\\":\\\"cut\\\"}]}\","
        "\"quarantine\":\"[{\\\"id\\\":2,\\\"cause\\\":\\\"cut\\\",\\\"row\\\":3},"
        "{\\\"id\\\":7,\\\"cause\\\":\\\"short\\\"}]\","
        "\"stream_options\":\"{\\\"training.global_batch_size\\\":4}\",\"recording\":\"\","
        "\"config\":\"a: 1\",\"choices\":\"\"}";
    char *folder = harness_temp();
    progress back = {0};
    bad_samples list = {0};
    write_file(folder, "state.json", golden);
    assert_ok(progress_read(folder, &back));
    assert_ok(progress_check(&back, "state.json"));
    assert_ok(bad_samples_read_text(&list, back.quarantine, "state.json"));
    assert_int_equal(list.n, 2);
    assert_non_null(bad_samples_find(&list, 7));
    bad_samples_done(&list);
    progress_done(&back);
    harness_remove(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_progress__is_read_as_it_was_written),
        cmocka_unit_test(test_progress_without_shares__has_none),
        cmocka_unit_test(test_progress__impossible_earlier_steps_are_refused),
        cmocka_unit_test(test_progress__impossible_shares_are_refused),
        cmocka_unit_test(test_progress__names_its_quarantine),
        cmocka_unit_test(test_progress__reads_what_an_earlier_trainer_wrote),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
