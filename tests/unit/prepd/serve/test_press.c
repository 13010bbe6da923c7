/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of compression_choice.h: images are compressed if a link is slower than the workers. */
#include "tests/harness.h"

#include "prepd/serve/core/state/dispatch_state.h"
#include "prepd/serve/core/decisions/core_decisions.h"

enum { ROW = 10000000 };

static void test_consumer__gets_raw_rows_while_it_waits(void **state)
{
    (void)state;
    assert_false(compress_for_consumer(false, 0, 20 * ROW, ROW));
    /* one row is under way, and none is spare */
    assert_false(compress_for_consumer(true, ROW, 0, ROW));
    assert_false(compress_for_consumer(true, 2 * ROW, 18 * ROW, ROW));
}

static void test_consumer__gets_compressed_rows_over_a_slow_link(void **state)
{
    (void)state;
    assert_true(compress_for_consumer(false, 20 * ROW, 0, ROW));
    assert_true(compress_for_consumer(false, 16 * ROW, 4 * ROW, ROW));
    assert_true(compress_for_consumer(false, 20 * ROW, -ROW, ROW));
}

static void test_consumer__keeps_the_choice_in_between(void **state)
{
    (void)state;
    assert_true(compress_for_consumer(true, 10 * ROW, 10 * ROW, ROW));
    assert_false(compress_for_consumer(false, 10 * ROW, 10 * ROW, ROW));
}

static void test_link__compresses_below_half_a_gigabyte_per_second(void **state)
{
    (void)state;
    compression_link slow = {0}, fast = {0};
    assert_false(compress_for_link(&slow));      /* nothing is known of the link yet */
    compression_link_note(&slow, ROW, 90000000); /* 1 Gbit/s */
    assert_true(compress_for_link(&slow));
    compression_link_note(&fast, ROW, 9000000); /* 10 Gbit/s */
    assert_false(compress_for_link(&fast));
    compression_link_note(&fast, ROW, -5); /* clocks of two machines may disagree */
    assert_false(compress_for_link(&fast));
}

static void test_link__follows_what_it_measures(void **state)
{
    (void)state;
    compression_link link = {0};
    compression_link_note(&link, ROW, 2000000);
    for (int i = 0; i < 30; i++)
        compression_link_note(&link, ROW, 100000000);
    assert_true(compress_for_link(&link));
    for (int i = 0; i < 30; i++)
        compression_link_note(&link, ROW, 5000000);
    assert_false(compress_for_link(&link));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_consumer__gets_raw_rows_while_it_waits),
        cmocka_unit_test(test_consumer__gets_compressed_rows_over_a_slow_link),
        cmocka_unit_test(test_consumer__keeps_the_choice_in_between),
        cmocka_unit_test(test_link__compresses_below_half_a_gigabyte_per_second),
        cmocka_unit_test(test_link__follows_what_it_measures),
    };
    return cmocka_run_group_tests_name("press", tests, NULL, NULL);
}
