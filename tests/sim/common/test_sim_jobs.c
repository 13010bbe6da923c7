/* SPDX-License-Identifier: Apache-2.0 */
/* A run in several processes plays the same schedules as a run in one, adds up what they count, and
 * goes on after a schedule that breaks something or ends its process. */
#include "tests/harness.h"

#include <stdlib.h>

#include "tests/sim/common/sim_jobs.h"
#include "tests/sim/common/sim_random.h"

enum { SCHEDULES = 100, BROKEN = 40, DEADLY = 61 };
static uint64_t counter[2];
static bool is_deadly;

static sim_played play(uint64_t seed, FILE *trace)
{
    (void)trace;
    if (is_deadly && seed == DEADLY)
        abort();
    counter[0]++;
    counter[1] += seed;
    sim_played played = {.events = 2, .hash = sim_random_mix(seed)};
    if (is_deadly && seed == BROKEN)
        snprintf(played.broken, sizeof played.broken, "something");
    return played;
}

static sim_tally run(uint64_t jobs, bool stop)
{
    const sim_program program = {play, counter, 2};
    const sim_request asked = {
        .name = "test", .schedules = SCHEDULES, .seed = 1, .jobs = jobs, .stop = stop};
    counter[0] = counter[1] = 0;
    return sim_jobs_play(&asked, &program);
}

static void test_jobs__all_processes_together_play_the_same(void **state)
{
    (void)state;
    const sim_tally one = run(1, false), three = run(3, false);
    assert_int_equal(one.schedules, SCHEDULES);
    assert_int_equal(three.schedules, SCHEDULES);
    assert_int_equal(three.events, 2 * SCHEDULES);
    assert_int_equal(three.violations, 0);
    assert_true(one.hash == three.hash && one.hash != 0);
    assert_int_equal(counter[0], SCHEDULES);
    assert_int_equal(counter[1], SCHEDULES * (SCHEDULES + 1) / 2);
}

static void test_jobs__a_death_is_a_violation_and_not_the_end(void **state)
{
    (void)state;
    is_deadly = true;
    const sim_tally all = run(2, false);
    assert_int_equal(all.schedules, SCHEDULES);
    assert_int_equal(all.violations, 2);
    assert_int_equal(counter[0], SCHEDULES - 1);
    const sim_tally some = run(1, true);
    assert_int_equal(some.schedules, BROKEN);
    assert_int_equal(some.violations, 1);
    is_deadly = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_jobs__all_processes_together_play_the_same),
        cmocka_unit_test(test_jobs__a_death_is_a_violation_and_not_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
