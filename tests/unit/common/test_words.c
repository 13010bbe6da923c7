/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of words_add: it appends to a buffer, drops what does not fit, and writes nothing beyond
 * the end. */
#include "tests/harness.h"

#include <string.h>

#include "common/base/words.h"

static void test_add__appends(void **state)
{
    (void)state;
    char out[16] = "";
    size_t count = words_add(out, sizeof out, 0, "%d", 12);
    count = words_add(out, sizeof out, count, "%s", "");
    count = words_add(out, sizeof out, count, ", %s", "ab");
    assert_string_equal(out, "12, ab");
    assert_int_equal(count, 6);
}

static void test_add__what_does_not_fit_is_dropped(void **state)
{
    (void)state;
    for (size_t size = 1; size <= 9; size++) {
        char out[16];
        memset(out, 'x', sizeof out);
        size_t count = 0;
        for (int i = 0; i < 4; i++) {
            count = words_add(out, size, count, " %d", 7);
            assert_true(count < size);
        }
        assert_int_equal(strlen(out), count);
        assert_int_equal(count, size - 1 < 8 ? size - 1 : 8);
        assert_memory_equal(out, " 7 7 7 7", count);
        for (size_t i = size; i < sizeof out; i++)
            assert_int_equal(out[i], 'x');
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_add__appends),
        cmocka_unit_test(test_add__what_does_not_fit_is_dropped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
