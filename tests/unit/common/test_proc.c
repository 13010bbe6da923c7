/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of proc.h: a child starts with an empty standard input and no blocked signals, signals
 * arrive on the descriptor, and what a process knows of its own path, processors and memory is
 * plausible. */
#include "tests/harness.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/proc.h"

static int exit_of(pid_t pid)
{
    int state;
    while (waitpid(pid, &state, 0) < 0)
        assert_int_equal(errno, EINTR);
    return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
}

static int spawn_shell(const char *script)
{
    char *argv[] = {(char *)"/bin/sh", (char *)"-c", (char *)script, NULL};
    pid_t pid;
    assert_ok(proc_spawn(argv, &pid));
    return exit_of(pid);
}

static void test_spawn__stdin_is_empty_and_no_signal_is_blocked(void **state)
{
    (void)state;
    int fd;
    /* blocks SIGTERM in this process; a child must not inherit that */
    assert_ok(proc_signal_fd(&fd));
    assert_int_equal(spawn_shell("read line && exit 3; exit 7"), 7);
    assert_int_equal(spawn_shell("kill -TERM $$; exit 9"), 128 + SIGTERM);
    struct pollfd wait = {fd, POLLIN, 0};
    assert_int_equal(poll(&wait, 1, 5000), 1);
    struct signalfd_siginfo info;
    assert_int_equal(read(fd, &info, sizeof info), sizeof info);
    assert_int_equal(info.ssi_signo, SIGCHLD);
    assert_int_equal(kill(getpid(), SIGINT), 0);
    assert_int_equal(poll(&wait, 1, 5000), 1);
    assert_int_equal(read(fd, &info, sizeof info), sizeof info);
    assert_int_equal(info.ssi_signo, SIGINT);
    close(fd);
}

static int spawn_child(const char *script, proc_child child)
{
    char *argv[] = {(char *)"/bin/sh", (char *)"-c", (char *)script, NULL};
    pid_t pid;
    child.argv = argv;
    assert_ok(proc_spawn_child(&child, &pid));
    return exit_of(pid);
}

static void test_spawn__input_is_all_that_stdin_holds(void **state)
{
    (void)state;
    static const char script[] = "read a && read b; [ \"$a$b\" = onetwo ] && ! read c && exit 7";
    const int kept = dup(STDIN_FILENO), lowest = dup(STDIN_FILENO);
    assert_int_equal(spawn_child(script, (proc_child){.input = "one\ntwo"}), 7);
    close(STDIN_FILENO); /* so that the pipe could get this number */
    assert_int_equal(spawn_child(script, (proc_child){.input = "one\ntwo"}), 7);
    if (kept >= 0)
        dup2(kept, STDIN_FILENO);
    close(kept);
    const int again = dup(STDIN_FILENO); /* no descriptor is left open */
    assert_int_equal(again, kept);
    close(again);
    close(lowest);
}

/* The program and what it keeps are descriptors, whatever is at their paths. */
static void test_spawn__from_descriptors(void **state)
{
    (void)state;
    char *folder = harness_temp(), path[300], script[200], copy[700];
    int kept[1], closed;
    pid_t pid;
    snprintf(path, sizeof path, "%s/sh", folder);
    snprintf(copy, sizeof copy, "cp /bin/sh %s", path);
    assert_int_equal(spawn_shell(copy), 0);
    const int program = proc_fd_above(open(path, O_PATH | O_CLOEXEC));
    assert_true(program > STDERR_FILENO);
    assert_int_equal(unlink(path), 0);
    kept[0] = memfd_create("kept", MFD_CLOEXEC);
    closed = memfd_create("closed", MFD_CLOEXEC);
    assert_true(kept[0] > STDERR_FILENO && closed > STDERR_FILENO);
    assert_int_equal(write(kept[0], "word\n", 5), 5);
    snprintf(script, sizeof script,
             "read a < /proc/self/fd/%d; [ $a = word ] && ! [ -e /proc/self/fd/%d ] && exit 7",
             kept[0], closed);
    char *argv[] = {path, (char *)"-c", script, NULL};
    const proc_child child = {.argv = argv, .program = program, .kept = kept, .n_kept = 1};
    assert_ok(proc_spawn_child(&child, &pid));
    assert_int_equal(exit_of(pid), 7);
    assert_fails(ST_OS, proc_spawn(argv, &pid), path);
    close(program);
    close(kept[0]);
    close(closed);
    harness_remove(&folder);
}

static void test_self__opened_again(void **state)
{
    (void)state;
    int fd;
    struct stat own, opened;
    assert_ok(proc_self_open(&fd));
    assert_int_equal(fstat(fd, &opened), 0);
    assert_int_equal(stat("/proc/self/exe", &own), 0);
    assert_true(own.st_ino == opened.st_ino && own.st_dev == opened.st_dev);
    close(fd);
}

static void test_spawn__child_has_stdin_even_if_we_have_none(void **state)
{
    (void)state;
    int kept = dup(STDIN_FILENO);
    close(STDIN_FILENO);
    int code = spawn_shell("[ -e /proc/$$/fd/0 ] || exit 3; read line; exit 7");
    if (kept >= 0) {
        dup2(kept, STDIN_FILENO);
        close(kept);
    }
    assert_int_equal(code, 7);
}

static void test_spawn__names_a_program_that_cannot_start(void **state)
{
    (void)state;
    char *argv[] = {(char *)"/nowhere/program", NULL};
    pid_t pid;
    assert_fails(ST_OS, proc_spawn(argv, &pid), "/nowhere/program");
}

/* Takes the place of libc's execv, the last call of a child before it becomes the other program. */
static bool stops_first;

int execv(const char *path, char *const argv[])
{
    if (stops_first)
        raise(SIGSTOP);
    return execve(path, argv, environ);
}

static void test_spawn__does_not_wait_for_a_child_stopped_before_exec(void **state)
{
    (void)state;
    char *argv[] = {(char *)"/bin/sh", (char *)"-c", (char *)"exit 5", NULL};
    pid_t pid;
    int wstatus;
    alarm(20); /* proc_spawn would wait for ever if it waited for the child */
    stops_first = true;
    assert_ok(proc_spawn(argv, &pid));
    stops_first = false;
    assert_int_equal(waitpid(pid, &wstatus, WUNTRACED), pid);
    assert_true(WIFSTOPPED(wstatus));
    assert_int_equal(kill(pid, SIGCONT), 0);
    assert_int_equal(exit_of(pid), 5);
    alarm(0);
}

static void test_follow_parent__notices_a_parent_that_has_gone(void **state)
{
    (void)state;
    pid_t us = getpid(), child = fork();
    assert_true(child >= 0);
    /* A failed assertion would jump into the parent's stack, so the child only exits. */
    if (child == 0)
        _exit(proc_follow_parent(us, SIGTERM) == ST_OK &&
                      proc_follow_parent(1, SIGKILL) == ST_STOPPED
                  ? 0
                  : 1);
    assert_int_equal(exit_of(child), 0);
}

static void test_self__path_cpus_and_memory(void **state)
{
    (void)state;
    char path[4096], small[4];
    assert_ok(proc_self_path(path, sizeof path));
    assert_non_null(strstr(path, "test_proc"));
    assert_fails(ST_OS, proc_self_path(small, sizeof small), "longer");
    int cpus = proc_cpus();
    assert_in_range(cpus, 1, sysconf(_SC_NPROCESSORS_CONF));
    size_t bytes = 64 << 20;
    int64_t before = proc_rss_bytes();
    char *block = (char *)malloc(bytes);
    assert_non_null(block);
    memset(block, 1, bytes);
    assert_true(proc_rss_bytes() - before > (int64_t)bytes / 2);
    free(block);
    assert_true(proc_peak_rss_bytes() - before > (int64_t)bytes / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spawn__stdin_is_empty_and_no_signal_is_blocked),
        cmocka_unit_test(test_spawn__input_is_all_that_stdin_holds),
        cmocka_unit_test(test_spawn__from_descriptors),
        cmocka_unit_test(test_self__opened_again),
        cmocka_unit_test(test_spawn__child_has_stdin_even_if_we_have_none),
        cmocka_unit_test(test_spawn__names_a_program_that_cannot_start),
        cmocka_unit_test(test_spawn__does_not_wait_for_a_child_stopped_before_exec),
        cmocka_unit_test(test_follow_parent__notices_a_parent_that_has_gone),
        cmocka_unit_test(test_self__path_cpus_and_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
