/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of verbs_child.h: a verb whose private daemon ends before it answers does not wait for it.
 * A child process plays the daemon. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "prepd/cli/verbs_child.h"

/* Starts a child that makes its socket, removes it after a moment and exits with 65. With listens,
 * one can connect meanwhile. */
static child_daemon start_failing(bool listens)
{
    child_daemon child = {.folder = "/tmp/tessera-child-XXXXXX"};
    assert_non_null(mkdtemp(child.folder));
    snprintf(child.endpoint, sizeof child.endpoint, "ipc://%s/s", child.folder);
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%.80s/s", child.folder);
    child.pid = fork();
    if (child.pid == 0) {
        const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) != 0 ||
            (listens && listen(fd, 8) != 0))
            _exit(1);
        usleep(300000);
        unlink(at.sun_path);
        _exit(65);
    }
    assert_true(child.pid > 0);
    return child;
}

static void test_child_open__a_daemon_that_ends_is_not_waited_for(void **state)
{
    (void)state;
    for (int listens = 0; listens <= 1; listens++) {
        child_daemon child = start_failing(listens);
        status_note note = {0};
        client *consumer = NULL;
        const int64_t start = clock_ns();
        assert_int_equal(child_open(&child, "train", 0, 1, &consumer),
                         ST_BAD_INPUT); /* the exit code 65 */
        /* far less than the 600 s that a silent daemon is waited for */
        assert_true(clock_ns() - start < INT64_C(60) * 1000000000);
        assert_null(consumer);
        child_stop(&child, NULL, &note);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_child_open__a_daemon_that_ends_is_not_waited_for)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
