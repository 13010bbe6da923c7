/* SPDX-License-Identifier: Apache-2.0 */
/* The pieces that all simulators share: the same numbers from the same seed, events in order of
 * time and then of arrival, a hash that tells schedules apart and does not heed the trace. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/sim/common/sim_log.h"
#include "tests/sim/common/sim_queue.h"
#include "tests/sim/common/sim_random.h"

/* The outputs of xoshiro256** for the state 1, 2, 3, 4, from its published source. */
static void test_random__is_xoshiro(void **state)
{
    (void)state;
    sim_random made = {{1, 2, 3, 4}};
    const uint64_t known[] = {11520, 0, 1509978240, UINT64_C(1215971899390074240)};
    for (int i = 0; i < 4; i++)
        assert_int_equal(sim_random_u64(&made), known[i]);
    /* splitmix64's first output for the seed 0 */
    assert_int_equal(sim_random_of(0).word[0], UINT64_C(0xe220a8397b1dcdaf));
}

static void test_random__draws_all_of_a_range_evenly(void **state)
{
    (void)state;
    enum { SIDES = 6, THROWS = 60000 };
    int seen[SIDES] = {0};
    sim_random made = sim_random_of(harness_seed());
    for (int i = 0; i < THROWS; i++)
        seen[sim_random_between(&made, 10, 10 + SIDES - 1) - 10]++;
    for (int i = 0; i < SIDES; i++) {
        assert_in_range(seen[i], THROWS / SIDES - 600, THROWS / SIDES + 600);
    }
    for (int i = 0; i < 1000; i++)
        assert_in_range(sim_random_tail(&made, 5, 100), 5, 5 + 100 * 256);
}

static void test_random__purposes_are_independent(void **state)
{
    (void)state;
    const sim_random root = sim_random_of(7);
    sim_random first = sim_random_split(&root, 0), again = sim_random_split(&root, 0),
               second = sim_random_split(&root, 1);
    const uint64_t drawn = sim_random_u64(&first);
    assert_int_equal(drawn, sim_random_u64(&again));
    assert_int_not_equal(drawn, sim_random_u64(&second));
}

static void test_queue__orders_by_time_then_by_arrival(void **state)
{
    (void)state;
    enum { EVENTS = 5000 };
    sim_queue queue = {0};
    sim_random made = sim_random_of(harness_seed());
    sim_event got, last = {.at_ns = -1};
    assert_null(sim_queue_next(&queue));
    for (int i = 0; i < EVENTS; i++)
        sim_queue_put(&queue, (sim_event){.at_ns = sim_random_between(&made, 0, 99), .who = i});
    for (int i = 0; i < EVENTS; i++) {
        const int next = sim_queue_next(&queue)->who;
        assert_true(sim_queue_take(&queue, &got));
        assert_int_equal(got.who, next);
        assert_true(got.at_ns > last.at_ns || (got.at_ns == last.at_ns && got.who > last.who));
        last = got;
    }
    assert_false(sim_queue_take(&queue, &got));
    sim_queue_done(&queue);
}

static uint64_t hash_of(FILE *trace, uint64_t seed, int who, const char *bytes, size_t size)
{
    sim_log log = sim_log_begin(seed, trace);
    sim_log_note(&log, 1000, 2, who, 4);
    sim_log_add(&log, bytes, size);
    sim_log_tell(&log, INT64_C(61000500000), "rank %d said \"%.*s\"", who, (int)size, bytes);
    assert_int_equal(log.events, 1);
    return log.hash;
}

static void test_log__hash_tells_events_apart(void **state)
{
    (void)state;
    const uint64_t hash = hash_of(NULL, 1, 3, "a message", 9);
    assert_int_equal(hash, hash_of(NULL, 1, 3, "a message", 9));
    assert_int_not_equal(hash, hash_of(NULL, 2, 3, "a message", 9));
    assert_int_not_equal(hash, hash_of(NULL, 1, 4, "a message", 9));
    assert_int_not_equal(hash, hash_of(NULL, 1, 3, "a massage", 9));
    assert_int_not_equal(hash, hash_of(NULL, 1, 3, "a message", 8));
}

static void test_log__trace_changes_no_hash(void **state)
{
    (void)state;
    char *text = NULL;
    size_t size = 0;
    FILE *trace = open_memstream(&text, &size);
    assert_int_equal(hash_of(NULL, 1, 3, "yes", 3), hash_of(trace, 1, 3, "yes", 3));
    fclose(trace);
    assert_string_equal(text, "    61.000500 s  rank 3 said \"yes\"\n");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random__is_xoshiro),
        cmocka_unit_test(test_random__draws_all_of_a_range_evenly),
        cmocka_unit_test(test_random__purposes_are_independent),
        cmocka_unit_test(test_queue__orders_by_time_then_by_arrival),
        cmocka_unit_test(test_log__hash_tells_events_apart),
        cmocka_unit_test(test_log__trace_changes_no_hash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
