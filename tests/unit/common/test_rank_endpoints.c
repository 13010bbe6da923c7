/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of rank_endpoints.c. */
#include <string.h>

#include "common/conf/rank_lists.h"
#include "tests/harness.h"

static const char list[] = "0-7=tcp://data0:5555, 8-15 = tcp://data1:5555 ,16=ipc:///run/a=b/sock";

static void assert_at(int rank, const char *wanted)
{
    size_t size = 0;
    const char *found = rank_endpoints_find(list, rank, &size);
    assert_non_null(found);
    assert_int_equal(size, strlen(wanted));
    assert_memory_equal(found, wanted, size);
}

static void test_find__each_rank_has_its_endpoint(void **state)
{
    (void)state;
    size_t size;
    assert_ok(rank_endpoints_check(list, "prepd.rank_endpoints", NULL));
    assert_at(0, "tcp://data0:5555");
    assert_at(7, "tcp://data0:5555");
    assert_at(8, "tcp://data1:5555");
    assert_at(16, "ipc:///run/a=b/sock");
    assert_null(rank_endpoints_find(list, 17, &size));
    assert_null(rank_endpoints_find("", 0, &size));
}

static void test_missing__the_first_rank_without_one(void **state)
{
    (void)state;
    assert_int_equal(rank_endpoints_missing(list, 16), 16);
    assert_int_equal(rank_endpoints_missing(list, 17), 17);
    assert_int_equal(rank_endpoints_missing(list, 64), 17);
    assert_int_equal(rank_endpoints_missing("4-7=tcp://b:1,0-2=tcp://a:1", 8), 3);
    assert_int_equal(rank_endpoints_missing("4-7=tcp://b:1,0-3=tcp://a:1", 8), 8);
    assert_int_equal(rank_endpoints_missing("", 1), 0);
}

static void test_check__refuses_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *list, *words;
    } wrong[] = {
        {"tcp://data0:5555", "is not a list of ranks and endpoints"},
        {"0-7=", "the ranks from 0 on have \"\""},
        {"0-7=tcp://data0:5555,", "is not a list of ranks and endpoints"},
        {"0-7=tcp://data0:5555;8=tcp://data1:5555", "the ranks from 0 on have"},
        {"0-7=tcp://data0:5555 8=tcp://data1:5555", "is not a list of ranks and endpoints"},
        {"7-0=tcp://data0:5555", "is not a list of ranks and endpoints"},
        {"0-7=tcp://data0", "which is neither tcp://HOST:PORT nor ipc:// with an absolute path"},
        {"0-7=ipc://prepd.sock", "which is neither tcp://HOST:PORT nor ipc:// with an absolute"},
        {"0-7=tcp://a:1,8-9=tcp://b:1,6-9=tcp://c:1", "rank 6 has two endpoints"},
        {"4=tcp://a:1,0-9=tcp://b:1", "rank 4 has two endpoints"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_fails(ST_CONFIG, rank_endpoints_check(wrong[i].list, "prepd.rank_endpoints", NULL),
                     wrong[i].words);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_find__each_rank_has_its_endpoint),
        cmocka_unit_test(test_missing__the_first_rank_without_one),
        cmocka_unit_test(test_check__refuses_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
