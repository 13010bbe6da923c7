/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of core/workers/local.c: with what message the daemon ends if its local workers cannot be started
 * or die before they begin. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/program/log.h"
#include "prepd/serve/shell.h"
#include "tests/harness.h"
#include "prepd/serve/core/workers/core_workers.h"

static dispatch state_of_daemon, *const daemon = &state_of_daemon;
static shell around;

/* A daemon with one local worker, for which it starts this program. */
static void begin_local(const char *self)
{
    static char endpoint[] = "ipc:///nowhere";
    around = (shell){.core = daemon, .local_endpoint = endpoint};
    *daemon = (dispatch){.outside = shell_outside(&around), .local = {.target = 1}};
    snprintf(around.self, sizeof around.self, "%s", self);
}

/* Starts the workers and waits until they have died, if they could be started. */
static void start_and_reap(void)
{
    daemon->local.not_before_ns = 0;
    local_tick(daemon, 0);
    while (local_alive(daemon) > 0) {
        processes_reap(&around);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

static void test_local__tells_what_cannot_be_started(void **state)
{
    (void)state;
    begin_local("/nowhere/prepd");
    for (int i = 0; i < 3; i++) {
        assert_false(daemon->stopping);
        start_and_reap();
    }
    assert_true(daemon->stopping);
    assert_non_null(strstr(daemon->cause.message, "cannot start /nowhere/prepd"));
}

/* Workers that die of another cause than the earlier one: the daemon ends after as many deaths as
 * without the earlier one, and tells the new cause. */
static void test_local__does_not_tell_an_old_cause(void **state)
{
    (void)state;
    begin_local("/nowhere/prepd");
    start_and_reap();
    snprintf(around.self, sizeof around.self, "/bin/false");
    for (int i = 1; i < 8; i++) {
        assert_false(daemon->stopping);
        start_and_reap();
    }
    assert_true(daemon->stopping);
    assert_non_null(strstr(daemon->cause.message, "workers died 8 times in a row"));
}

/* Eight workers that die at start_and_reap have one cause, so they count as few deaths. */
static void test_local__deaths_at_once_count_as_one(void **state)
{
    (void)state;
    begin_local("/bin/false");
    daemon->local.target = 8;
    start_and_reap();
    start_and_reap();
    assert_false(daemon->stopping);
    assert_in_range(daemon->local.deaths_at_start, 2, 7);
}

/* Deciders that are needed beside those that were asked for stay a minute longer than they are. */
static void test_local_need__adds_and_takes_back(void **state)
{
    (void)state;
    conf options = {0};
    begin_local("/bin/false");
    daemon->options = &options;
    local_scale(daemon, 0);
    local_need(daemon, 2);
    assert_int_equal(daemon->local.needed, 2);
    assert_int_equal(daemon->local.target, 0);
    daemon->now_ns += INT64_C(59000000000);
    local_need(daemon, 0);
    assert_int_equal(daemon->local.needed, 2);
    local_need(daemon, 2);
    daemon->now_ns += INT64_C(59000000000);
    local_need(daemon, 0);
    assert_int_equal(daemon->local.needed, 2);
    daemon->now_ns += INT64_C(2000000000);
    local_need(daemon, 0);
    assert_int_equal(daemon->local.needed, 0);
    options.prepd_workers = -1; /* none here, and keys that are trusted */
    daemon->place.trusted = true;
    local_need(daemon, 2);
    assert_int_equal(daemon->local.needed, 0);
    assert_false(local_may_decide(daemon));
    daemon->options = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_local__tells_what_cannot_be_started),
        cmocka_unit_test(test_local__deaths_at_once_count_as_one),
        cmocka_unit_test(test_local__does_not_tell_an_old_cause),
        cmocka_unit_test(test_local_need__adds_and_takes_back),
    };
    log_init("test", LOG_ERROR, false);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
