/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of webdataset.h: a name with braces stands for a list, a range, or their products;
 * malformed and huge ones are refused. */
#include "tests/harness.h"

#include <stdio.h>
#include <string.h>

#include "prepd/dataset/adapters/webdataset.h"

static status join_names(void *user, const char *name)
{
    strcat(strcat((char *)user, name), " ");
    return ST_OK;
}

static status count_names(void *user, const char *name)
{
    (void)name;
    ++*(long *)user;
    return ST_OK;
}

static void test_braces__ranges_lists_and_products(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"a.tar", "a.tar "},
        {"a{8..11}", "a8 a9 a10 a11 "},
        {"a{008..011}.tar", "a008.tar a009.tar a010.tar a011.tar "},
        {"{a,b}/{0..1}", "a/0 a/1 b/0 b/1 "},
        {"x{one}y{a,,b}", "xoneya xoney xoneyb "},
        {"{a..c}", "a..c "},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char got[256] = "";
        assert_ok(braces_expand(cases[k][0], join_names, got));
        assert_string_equal(got, cases[k][1]);
    }
    long count = 0;
    assert_ok(braces_expand("{000000..099999}", count_names, &count));
    assert_int_equal(count, 100000);
}

static void test_braces__malformed_and_huge_ones_are_refused(void **state)
{
    (void)state;
    static const char *const cases[] = {"{",
                                        "a{}",
                                        "{a{b}}",
                                        "{5..3}",
                                        "{0..9999999}",
                                        "{0..999}{0..999}{0..9}",
                                        "{0}{0}{0}{0}{0}{0}{0}{0}{0}{0}"};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        long count = 0;
        assert_fails(ST_CONFIG, braces_expand(cases[k], count_names, &count), "{");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_braces__ranges_lists_and_products),
        cmocka_unit_test(test_braces__malformed_and_huge_ones_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
