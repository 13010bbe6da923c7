/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of rank_ranges.c. */
#include <string.h>

#include "common/conf/rank_lists.h"
#include "tests/harness.h"

static void test_have__ranks_of_a_list(void **state)
{
    (void)state;
    static const char list[] = "0-2, 5 ,8 - 9";
    static const bool there[] = {true, true, true, false, false, true, false, false, true, true};
    assert_ok(rank_ranges_check(list, "prepd.ranks", NULL));
    for (int rank = 0; rank < (int)(sizeof there / sizeof *there); rank++)
        assert_int_equal(rank_ranges_have(list, rank), there[rank]);
    assert_false(rank_ranges_have(list, 10));
}

static void test_have__empty_means_all(void **state)
{
    (void)state;
    assert_ok(rank_ranges_check("", "prepd.ranks", NULL));
    assert_true(rank_ranges_have("", 0));
    assert_true(rank_ranges_have("", MAX_RANKS - 1));
}

static void test_check__refuses_what_is_no_list(void **state)
{
    (void)state;
    static const char *const wrong[] = {"all", "0-",  "-3",    "3-2",   "0,,1",        "0,", ",0",
                                        "0 1", "0;1", "65536", "0-1-2", "99999999999", " "};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_fails(ST_CONFIG, rank_ranges_check(wrong[i], "prepd.ranks", "a.yaml"),
                     "prepd.ranks");
    assert_ok(rank_ranges_check("65535", "prepd.ranks", NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_have__ranks_of_a_list),
        cmocka_unit_test(test_have__empty_means_all),
        cmocka_unit_test(test_check__refuses_what_is_no_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
