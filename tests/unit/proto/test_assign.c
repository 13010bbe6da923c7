/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of assign_rows: ranks get the same number of rows of a step (or one more), nearly the same
 * cost, and the same rows every time. */
#include <string.h>

#include "common/base/rng.h"
#include "proto/row/assign.h"
#include "tests/harness.h"

/* Fails the test unless the rank with the highest cost is within a thousandth of the mean, or
 * swapping one of its rows for a row of another rank would not help. */
static void assert_no_exchange_helps(const int64_t *cost, int64_t count, int ranks,
                                     const int64_t *load, const int *rank_of)
{
    int dearest = 0;
    int64_t total = 0;
    for (int rank = 0; rank < ranks; rank++) {
        total += load[rank];
        if (load[rank] > load[dearest])
            dearest = rank;
    }
    if (count <= ranks || load[dearest] <= total / ranks + total / ranks / 1000)
        return;
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < count; j++) {
            const int64_t less = cost[i] - cost[j];
            if (rank_of[i] == dearest && rank_of[j] != dearest && less > 0)
                assert_true(load[rank_of[j]] + less >= load[dearest]);
        }
}

/* Handing out rows from the most expensive one down would give 34 and 26; an even split exists. */
static void test_assign__better_than_most_expensive_first(void **state)
{
    (void)state;
    const int64_t cost[] = {15, 14, 11, 10, 9, 1};
    int rank_of[6];
    int64_t load[2] = {0};
    assert_ok(assign_rows(cost, 6, 2, rank_of));
    for (int k = 0; k < 6; k++)
        load[rank_of[k]] += cost[k];
    assert_int_equal(load[0], load[1]);
}

static void test_assign__equal_counts_and_balance(void **state)
{
    (void)state;
    rng_key key = rng_key_make(harness_seed(), "test assign");
    uint64_t drawn = 0;
    for (int round = 0; round < 200; round++) {
        int ranks = 1 + (int)rng_below(key, drawn++, 16);
        int64_t length = (int64_t)rng_below(key, drawn++, 100);
        int64_t cost[100], load[16] = {0}, count[16] = {0}, most = 0, total = 0;
        int rank_of[100], again[100];
        for (int64_t i = 0; i < length; i++) {
            cost[i] = 1 + (int64_t)rng_below(key, drawn++, 1000);
            most = cost[i] > most ? cost[i] : most;
            total += cost[i];
        }
        assert_ok(assign_rows(cost, length, ranks, rank_of));
        assert_ok(assign_rows(cost, length, ranks, again));
        for (int64_t i = 0; i < length; i++) {
            assert_int_equal(rank_of[i], again[i]);
            assert_in_range(rank_of[i], 0, ranks - 1);
            load[rank_of[i]] += cost[i];
            count[rank_of[i]]++;
        }
        for (int rank = 0; rank < ranks; rank++) {
            assert_true(count[rank] == length / ranks || count[rank] == length / ranks + 1);
            if (length % ranks ==
                0) /* with equal counts, the load is at most one row above the mean */
                assert_true(load[rank] * ranks <= total + most * ranks);
        }
        assert_no_exchange_helps(cost, length, ranks, load, rank_of);
    }
    int one;
    assert_fails(ST_BAD_INPUT, assign_rows(NULL, 0, 0, &one), "0 ranks");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_assign__equal_counts_and_balance),
        cmocka_unit_test(test_assign__better_than_most_expensive_first)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
