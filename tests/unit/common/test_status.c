/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of status.h: the note that an error leaves with its thread, the text made of it, and that
 * every code has a name and an exit code. */
#include "tests/harness.h"

#include <pthread.h>
#include <string.h>

#include "common/base/status.h"

static status fail_deep(void)
{
    return FAIL_AT(ST_BAD_INPUT, "a.json", 7, -1, "expected %s", "a number");
}

static status forward_failure(void)
{
    TRY(fail_deep());
    return ST_OK;
}

static void test_text__names_file_line_or_byte(void **state)
{
    (void)state;
    assert_int_equal(forward_failure(), ST_BAD_INPUT);
    assert_string_equal(status_text(), "a.json:7: expected a number");
    assert_int_equal(status_last()->line, 7);
    (void)FAIL_AT(ST_BAD_INPUT, "b.bin", -1, 12, "short");
    assert_string_equal(status_text(), "b.bin: byte 12: short");
    (void)FAIL_IN(ST_IO, "c", "gone");
    assert_string_equal(status_text(), "c: gone");
    (void)FAIL(ST_IO, "plain");
    assert_string_equal(status_text(), "plain");
}

static void test_fail__may_wrap_the_last_text(void **state)
{
    (void)state;
    (void)FAIL_IN(ST_IO, "c", "gone");
    (void)FAIL(ST_CONFIG, "while loading: %s", status_text());
    assert_string_equal(status_text(), "while loading: c: gone");
    status_context(ST_CONFIG, "step %d", 3);
    assert_string_equal(status_text(), "step 3: while loading: c: gone");
}

static void test_fail__long_text_is_cut_not_overrun(void **state)
{
    (void)state;
    char big[STATUS_MESSAGE_MAX * 2];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = 0;
    (void)FAIL_IN(ST_IO, big, "%s", big);
    status_context(ST_IO, "%s", big);
    assert_int_equal(strlen(status_last()->message), STATUS_MESSAGE_MAX - 1);
    assert_int_equal(strlen(status_last()->input), STATUS_PATH_MAX - 1);
}

static void *other_thread(void *user)
{
    (void)FAIL(ST_IO, "other");
    *(status_note *)user = *status_last();
    return NULL;
}

static void test_note__belongs_to_its_thread(void **state)
{
    (void)state;
    static status_note from_other;
    pthread_t thread;
    (void)FAIL(ST_IO, "mine");
    assert_int_equal(pthread_create(&thread, NULL, other_thread, &from_other), 0);
    pthread_join(thread, NULL);
    assert_string_equal(status_text(), "mine");
    status_set(&from_other);
    assert_string_equal(status_text(), "other");
    status_clear();
    assert_string_equal(status_text(), "");
}

static void test_codes__all_named(void **state)
{
    (void)state;
    for (int code = 0; code < ST_COUNT; code++) {
        assert_int_equal(strncmp(status_name((status)code), "ST_", 3), 0);
        assert_string_not_equal(status_meaning((status)code), "unknown");
        int exit_code = status_exit_code((status)code);
        assert_true(exit_code == 0 || (exit_code >= 64 && exit_code <= 78));
    }
    assert_string_equal(status_name((status)999), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text__names_file_line_or_byte),
        cmocka_unit_test(test_fail__may_wrap_the_last_text),
        cmocka_unit_test(test_fail__long_text_is_cut_not_overrun),
        cmocka_unit_test(test_note__belongs_to_its_thread),
        cmocka_unit_test(test_codes__all_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
