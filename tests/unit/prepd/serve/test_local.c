/* Local workers that cannot be started, or die before they begin: what the daemon ends with. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/program/log.h"
#include "prepd/serve/dispatch_state.h"
#include "tests/harness.h"

static dispatch d;

/* One worker, of this program. */
static void begin_local(const char *self)
{
    static char endpoint[] = "ipc:///nowhere";
    d = (dispatch){.local = {.endpoint = endpoint, .target = 1}};
    snprintf(d.local.self, sizeof d.local.self, "%s", self);
}

/* Starts one and sees it die, if it can be started. */
static void once(void)
{
    d.local.not_before_ns = 0;
    local_tick(&d, 0);
    while (local_alive(&d) > 0) {
        local_reap(&d);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

static void test_local__what_can_not_be_started_is_told(void **state)
{
    (void)state;
    begin_local("/nowhere/prepd");
    for (int i = 0; i < 3; i++) {
        assert_false(d.stopping);
        once();
    }
    assert_true(d.stopping);
    assert_non_null(strstr(d.cause.message, "cannot start /nowhere/prepd"));
}

/* Of another cause than the one before: theirs is told, and only after as many as without one. */
static void test_local__an_old_cause_is_not_told_of_others(void **state)
{
    (void)state;
    begin_local("/nowhere/prepd");
    once();
    snprintf(d.local.self, sizeof d.local.self, "/bin/false");
    for (int i = 1; i < 8; i++) {
        assert_false(d.stopping);
        once();
    }
    assert_true(d.stopping);
    assert_non_null(strstr(d.cause.message, "workers died 8 times in a row"));
}

/* What eight have in common is no more than what one has. */
static void test_local__deaths_at_once_count_as_one(void **state)
{
    (void)state;
    begin_local("/bin/false");
    d.local.target = 8;
    once();
    once();
    assert_false(d.stopping);
    assert_in_range(d.local.deaths_at_start, 2, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_local__what_can_not_be_started_is_told),
        cmocka_unit_test(test_local__deaths_at_once_count_as_one),
        cmocka_unit_test(test_local__an_old_cause_is_not_told_of_others),
    };
    log_init("test", LOG_ERROR, false);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
