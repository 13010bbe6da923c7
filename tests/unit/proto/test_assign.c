/* test_assign.c: rows of a step to ranks: equal counts, even load, the same every time. */
#include <string.h>

#include "common/rng.h"
#include "proto/assign.h"
#include "tests/harness.h"

static void test_assign__equal_counts_and_balance(void **state)
{
    (void)state;
    rng_key key = rng_key_make(harness_seed(), "test assign");
    uint64_t c = 0;
    for (int round = 0; round < 200; round++) {
        int ranks = 1 + (int)rng_below(key, c++, 16);
        int64_t n = (int64_t)rng_below(key, c++, 100);
        int64_t cost[100], load[16] = {0}, count[16] = {0}, most = 0, total = 0;
        int rank_of[100], again[100];
        for (int64_t i = 0; i < n; i++) {
            cost[i] = 1 + (int64_t)rng_below(key, c++, 1000);
            most = cost[i] > most ? cost[i] : most;
            total += cost[i];
        }
        assert_ok(assign_rows(cost, n, ranks, rank_of));
        assert_ok(assign_rows(cost, n, ranks, again));
        for (int64_t i = 0; i < n; i++) {
            assert_int_equal(rank_of[i], again[i]);
            assert_in_range(rank_of[i], 0, ranks - 1);
            load[rank_of[i]] += cost[i];
            count[rank_of[i]]++;
        }
        for (int r = 0; r < ranks; r++) {
            assert_true(count[r] == n / ranks || count[r] == n / ranks + 1);
            if (n % ranks == 0) /* equal counts cost at most one row over the mean */
                assert_true(load[r] * ranks <= total + most * ranks);
        }
    }
    int one;
    assert_fails(ST_BAD_INPUT, assign_rows(NULL, 0, 0, &one), "0 ranks");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_assign__equal_counts_and_balance)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
