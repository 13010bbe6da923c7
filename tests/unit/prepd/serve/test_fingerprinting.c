/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of core/workers/fingerprinting.c: when a process that makes fingerprints has failed. */
#include "tests/harness.h"

#include <string.h>

#include "common/program/log.h"
#include "prepd/serve/core/state/dispatch_state.h"
#include "prepd/serve/core/workers/core_workers.h"
#include "tests/unit/prepd/serve/still_world.h"

static dispatch daemon;
static char asked[128];

static status start(void *shell, const char *only, pid_t *out_pid)
{
    (void)shell;
    strcpy(asked, only);
    *out_pid = 7;
    return ST_OK;
}

static void begin(void)
{
    log_init("test", LOG_ERROR, false);
    daemon = (dispatch){.outside = still_world(), .now_ns = 1};
    daemon.outside.start_fingerprinting = start;
    assert_ok(fingerprinting_start(&daemon));
}

static void tell(const char *kind)
{
    char line[64];
    snprintf(line, sizeof line, "%s 0123456789abcdef0123456789abcdef", kind);
    fingerprinting_line(&daemon, line);
}

static void die(void)
{
    fingerprinting_ended(&daemon);
    if (!daemon.stopping)
        assert_ok(fingerprinting_start(&daemon));
}

static void test_fingerprinting__gives_up_after_three_deaths(void **state)
{
    (void)state;
    begin();
    assert_string_equal(asked, "images,tokens,jpeg,png,webp,resizing,frames,texts,packing,");
    die();
    tell("images");
    die();
    assert_string_equal(asked, "tokens,jpeg,png,webp,resizing,frames,texts,packing,");
    assert_false(daemon.stopping);
    die();
    assert_true(daemon.stopping);
}

/* The data turns out to have videos while the first process is at work. That it does not tell
 * theirs is no death. */
static void test_fingerprinting__what_was_not_asked_is_no_death(void **state)
{
    (void)state;
    begin();
    daemon.videos = true;
    for (int k = 0; k < N_PRINTS; k++)
        if (!print_needs_videos((print_kind)k))
            tell(print_names[k]);
    die();
    assert_string_equal(asked, "videos,clips,");
    die();
    die();
    assert_false(daemon.stopping);
    tell("videos");
    tell("clips");
    fingerprinting_ended(&daemon);
    assert_true(fingerprints_are_known(&daemon));
    assert_int_equal(daemon.maker.deaths, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fingerprinting__gives_up_after_three_deaths),
        cmocka_unit_test(test_fingerprinting__what_was_not_asked_is_no_death),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
