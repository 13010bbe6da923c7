/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of last_words.h: a process that crashes by its own fault ends by that signal, and one that
 * got the signal from another process ends with an exit code that says so. */
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/proc.h"
#include "prepd/worker/last_words.h"
#include "tests/harness.h"

/* Runs act() in a child that has installed the handlers, and returns how the child ended. */
static int end_of(void (*act)(void))
{
    const struct rlimit no_core = {0, 0};
    int wstatus;
    pid_t pid = fork();
    if (pid == 0) {
        if (setrlimit(RLIMIT_CORE, &no_core) != 0 || last_words_install() != ST_OK)
            _exit(99);
        last_words_busy(true);
        act();
        _exit(98);
    }
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &wstatus, 0), pid);
    return wstatus;
}

static void by_abort(void)
{
    abort();
}

static void by_raise(void)
{
    raise(SIGTRAP);
}

/* Another process, a child of this one, sends the signal. */
static void send_signal(int sig)
{
    pid_t victim = getpid();
    if (fork() == 0) {
        kill(victim, sig);
        _exit(0);
    }
    pause();
}

static void sent_abort(void)
{
    send_signal(SIGABRT);
}

static void sent_segv(void)
{
    send_signal(SIGSEGV);
}

static void test_last_words__own_fault(void **state)
{
    (void)state;
    int end = end_of(by_abort);
    assert_true(WIFSIGNALED(end) && WTERMSIG(end) == SIGABRT);
    end = end_of(by_raise);
    assert_true(WIFSIGNALED(end) && WTERMSIG(end) == SIGTRAP);
}

static void test_last_words__sent_by_another(void **state)
{
    struct sigaction old;
    (void)state;
    int end = end_of(sent_abort);
    assert_true(WIFEXITED(end) && WEXITSTATUS(end) == PROC_EXIT_OUTSIDE + SIGABRT);
    if (sigaction(SIGSEGV, NULL, &old) != 0 || old.sa_handler != SIG_DFL)
        return; /* a sanitizer has its own handler, which last_words leaves in place */
    end = end_of(sent_segv);
    assert_true(WIFEXITED(end) && WEXITSTATUS(end) == PROC_EXIT_OUTSIDE + SIGSEGV);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_last_words__own_fault),
        cmocka_unit_test(test_last_words__sent_by_another),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
