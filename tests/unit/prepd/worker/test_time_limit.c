/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of image_files.h: a process that takes too long for an item is ended by SIGALRM. Time during
 * which it was stopped does not count. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/proc.h"
#include "prepd/worker/media/image_files.h"
#include "tests/harness.h"

enum { LIMIT_MS = 200, MS = 1000 };

/* A child that works on one item for work_ms, in slices of 5 ms. */
static pid_t child_at_work(int work_ms)
{
    pid_t pid = fork();
    if (pid == 0) {
        if (time_limit_install(LIMIT_MS / 1e3) != ST_OK)
            _exit(99);
        time_limit_start();
        for (int ms = 0; ms < work_ms; ms += 5)
            usleep(5 * MS);
        time_limit_stop();
        usleep(2 * LIMIT_MS * MS); /* between items it may take as long as it likes */
        _exit(0);
    }
    assert_true(pid > 0);
    return pid;
}

static proc_end end_of(pid_t pid)
{
    char what[80];
    int wstatus;
    assert_int_equal(waitpid(pid, &wstatus, 0), pid);
    return proc_end_of(wstatus, what, sizeof(what));
}

static void test_time_limit__too_long(void **state)
{
    (void)state;
    assert_int_equal(end_of(child_at_work(20 * LIMIT_MS)), PROC_END_TIME);
}

static void test_time_limit__in_time(void **state)
{
    (void)state;
    assert_int_equal(end_of(child_at_work(5)), PROC_END_LEFT);
}

/* Waiting before another try ends by itself within the limit of the item, and the next item has
 * waits of its own. */
static void test_time_limit__bounds_the_waits_of_an_item(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0) {
        int count = time_limit_wait() ? 100 : 0; /* without a limit there is no wait */
        if (time_limit_install(LIMIT_MS / 1e3) != ST_OK)
            _exit(99);
        for (int item = 0; item < 20; item++)
            for (time_limit_start(); time_limit_wait();)
                count++;
        _exit(count == 20 * 4 ? 0 : 1);
    }
    assert_int_equal(end_of(pid), PROC_END_LEFT);
}

static void test_time_limit__stopped_is_not_slow(void **state)
{
    (void)state;
    pid_t pid = child_at_work(20);
    usleep(10 * MS);
    kill(pid, SIGSTOP);
    usleep(3 * LIMIT_MS * MS);
    kill(pid, SIGCONT);
    assert_int_equal(end_of(pid), PROC_END_LEFT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_time_limit__too_long),
        cmocka_unit_test(test_time_limit__in_time),
        cmocka_unit_test(test_time_limit__bounds_the_waits_of_an_item),
        cmocka_unit_test(test_time_limit__stopped_is_not_slow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
