/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of visible.h: characters that steer a terminal or reorder text are escaped, all others
 * stay, and a cut never splits a character or an escape. */
#include "tests/harness.h"

#include <stdio.h>
#include <string.h>

#include "common/base/words.h"

static void test_escape__shows_control_characters(void **state)
{
    static const struct {
        const char *text, *shown;
    } cases[] = {
        {"", ""},
        {"a photo.jpg", "a photo.jpg"},
        {"Stra\u00dfe \u6c34 \U0001F600 \\ \"'<b>", "Stra\u00dfe \u6c34 \U0001F600 \\ \"'<b>"},
        {"\x1b[31mred\x1b[0m\a", "\\x1b[31mred\\x1b[0m\\x07"},
        {"a\nb\r\tc\x7f", "a\\x0ab\\x0d\\x09c\\x7f"},
        {"\xc2\x9b"
         "31m",
         "\\u009b31m"},
        {"\xff\xc3(\xed\xa0\x80", "\\xff\\xc3(\\xed\\xa0\\x80"},
        {"gpj.\u202etxe \u2066\u200f\u2028", "gpj.\\u202etxe \\u2066\\u200f\\u2028"},
        {"\u00a0\u200d\u2027\u202f", "\u00a0\u200d\u2027\u202f"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(escape_text(cases[i].text).text, cases[i].shown);
}

/* For every size of the buffer, the text ends after a whole character or a whole escape, and
 * nothing is written beyond it. */
static void test_copy__is_cut_after_a_whole_character(void **state)
{
    static const char text[] = "a\x1b\u00e9\u202ez", shown[] = "a\\x1b\u00e9\\u202ez";
    static const size_t borders[] = {0, 1, 5, 7, 13, 14};
    (void)state;
    for (size_t size = 1; size <= sizeof shown; size++) {
        char out[32];
        size_t want = 0;
        memset(out, 'x', sizeof out);
        for (size_t i = 0; i < sizeof borders / sizeof *borders; i++)
            if (borders[i] < size)
                want = borders[i];
        assert_int_equal(visible_copy(out, size, text), want);
        assert_int_equal(strlen(out), want);
        assert_memory_equal(out, shown, want);
        assert_int_equal(out[size], 'x');
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_escape__shows_control_characters),
        cmocka_unit_test(test_copy__is_cut_after_a_whole_character),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
