/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of sandbox.h: what a worker in its sandbox cannot do, and what it still can. Each attempt
 * is made by a child that has entered the sandbox. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "prepd/worker/sandbox.h"
#include "tests/harness.h"

/* Runs attempt() in a child that has entered the sandbox, and returns its exit code: 0 if all was
 * denied, or allowed, as it should be. */
static int in_sandbox(int (*attempt)(void))
{
    int wstatus;
    pid_t pid = fork();
    if (pid == 0)
        _exit(sandbox_enter() == ST_OK ? attempt() : 99);
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &wstatus, 0), pid);
    return WIFEXITED(wstatus) ? WEXITSTATUS(wstatus) : 128 + WTERMSIG(wstatus);
}

static int denied(long result)
{
    return result == -1 && errno == EPERM ? 0 : 1;
}

static int by_socket(void)
{
    return denied(socket(AF_INET, SOCK_STREAM, 0));
}

static int by_local_socket(void)
{
    return denied(socket(AF_UNIX, SOCK_STREAM, 0));
}

static int by_exec(void)
{
    char *argv[] = {(char[]){"/bin/true"}, NULL};
    return denied(execv(argv[0], argv));
}

/* Under a sanitizer the sandbox allows forks and traces, because the leak check needs them. */
static bool sanitized(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    return true;
#endif
#endif
    return false;
}

static int by_fork(void)
{
    return sanitized() ? 0 : denied(fork());
}

/* Tries to trace the parent, which belongs to the same user. PTRACE_SEIZE is tried because
 * PTRACE_ATTACH, if it were allowed, would leave the parent stopped. */
static int by_trace(void)
{
    if (sanitized())
        return 0;
    char byte;
    /* after a fork both processes have it at the same address */
    struct iovec mine = {&byte, 1}, theirs = {&byte, 1};
    return denied(ptrace(PTRACE_SEIZE, getppid(), NULL, NULL)) |
           denied(ptrace(PTRACE_TRACEME, 0, NULL, NULL)) |
           denied(process_vm_readv(getppid(), &mine, 1, &theirs, 1, 0)) |
           denied(process_vm_writev(getppid(), &mine, 1, &theirs, 1, 0));
}

static int by_write(void)
{
    return denied(open("/tmp/tessera-sandbox", O_WRONLY | O_CREAT, 0600));
}

static int by_change(void)
{
    return denied(unlink("/tmp/tessera-sandbox")) | denied(mkdir("/tmp/tessera-sandbox", 0700)) |
           denied(chmod("/tmp", 0700));
}

static int by_signal(void)
{
    return denied(kill(getppid(), SIGKILL));
}

/* Characters pushed into a terminal would be read by the user's shell, and TCSETS would change the
 * terminal for all its processes. */
static int by_terminal(void)
{
    struct termios terminal = {0};
    char byte = 'x';
    return denied(ioctl(STDERR_FILENO, TIOCSTI, &byte)) |
           denied(ioctl(STDERR_FILENO, TIOCSCTTY, 0)) |
           denied(ioctl(STDERR_FILENO, TCSETS, &terminal));
}

static int by_owner(void)
{
    struct f_owner_ex owner = {.type = F_OWNER_PID, .pid = getppid()};
    int pipes[2], parent = getppid();
    return pipe(pipes) | denied(fcntl(pipes[0], F_SETOWN, getppid())) |
           denied(fcntl(pipes[0], F_SETOWN_EX, &owner)) |
           denied(fcntl(pipes[0], F_SETSIG, SIGKILL)) | denied(ioctl(pipes[0], FIOSETOWN, &parent));
}

static int by_limits_of_another(void)
{
    const struct rlimit none = {0, 0};
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(0, &cpus);
    return denied(prlimit(getppid(), RLIMIT_NOFILE, &none, NULL)) |
           denied(sched_setaffinity(getppid(), sizeof(cpus), &cpus));
}

static int by_own_limits(void)
{
    struct rlimit limit;
    cpu_set_t cpus;
    int waiting, pipes[2];
    return getrlimit(RLIMIT_NOFILE, &limit) |
           (prlimit(getpid(), RLIMIT_NOFILE, NULL, &limit) != 0) |
           (sched_getaffinity(0, sizeof(cpus), &cpus) < 0) | pipe(pipes) |
           (fcntl(pipes[0], F_SETFL, O_NONBLOCK) != 0) |
           (fcntl(pipes[0], F_SETFD, FD_CLOEXEC) != 0) | (ioctl(pipes[0], FIONREAD, &waiting) != 0);
}

static int by_identity(void)
{
    return denied(setuid(65534)) | denied(setgid(65534));
}

static int by_reading(void)
{
    char byte;
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    return fd >= 0 && read(fd, &byte, 1) == 1 && close(fd) == 0 ? 0 : 1;
}

/* Sanitizers and garbage collectors do this. glibc then asks for the CPUs of the thread by its
 * id. */
static void *asks_for_its_stack(void *failed)
{
    pthread_attr_t attr;
    return pthread_getattr_np(pthread_self(), &attr) || pthread_attr_destroy(&attr) ? failed : NULL;
}

/* libzmq does this in every thread that it starts. */
static void *sets_its_policy(void *failed)
{
    struct sched_param none;
    int policy;
    return pthread_getschedparam(pthread_self(), &policy, &none) ||
                   pthread_setschedparam(pthread_self(), policy, &none)
               ? failed
               : NULL;
}

static int thread_fails(void *(*work)(void *))
{
    pthread_t thread;
    char mark;
    void *failed = &mark;
    return pthread_create(&thread, NULL, work, &mark) != 0 || pthread_join(thread, &failed) != 0 ||
           failed;
}

static int by_thread(void)
{
    void *memory = malloc(1 << 24);
    const int bad = !memory || thread_fails(asks_for_its_stack) || thread_fails(sets_its_policy);
    free(memory);
    return bad;
}

static int by_priority(void)
{
    const struct sched_param most = {.sched_priority = 1};
    return denied(sched_setscheduler(0, SCHED_FIFO, &most));
}

static int by_abort(void)
{
    signal(SIGABRT, SIG_DFL);
    abort();
}

/* After sandbox_shed_privileges root can neither change an owner nor the host name, which need
 * capabilities, nor read a file without permissions. Another user has no privileges to shed, so
 * nothing is checked. */
static int as_root_without_privileges(const char *file)
{
    if (sandbox_shed_privileges() != ST_OK || sandbox_shed_privileges() != ST_OK)
        return 99;
    if (geteuid() != 0)
        return 0;
    if (chown(file, 1, 1) != -1 || errno != EPERM)
        return 1;
    if (sethostname("x", 1) != -1 || errno != EPERM)
        return 2;
    const int fd = open(file, O_RDONLY | O_CLOEXEC);
    return fd < 0 && errno != EACCES ? 3 : 0;
}

static void test_sandbox__privileges(void **state)
{
    (void)state;
    int wstatus;
    char file[] = "/tmp/sandbox-XXXXXX";
    const int fd = mkstemp(file);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(chmod(file, 0), 0);
    pid_t pid = fork();
    if (pid == 0)
        _exit(as_root_without_privileges(file));
    assert_int_equal(waitpid(pid, &wstatus, 0), pid);
    unlink(file);
    assert_true(WIFEXITED(wstatus));
    assert_int_equal(WEXITSTATUS(wstatus), 0);
}

static void test_sandbox__denied(void **state)
{
    (void)state;
    assert_int_equal(in_sandbox(by_socket), 0);
    assert_int_equal(in_sandbox(by_local_socket), 0);
    assert_int_equal(in_sandbox(by_exec), 0);
    assert_int_equal(in_sandbox(by_fork), 0);
    assert_int_equal(in_sandbox(by_trace), 0);
    assert_int_equal(in_sandbox(by_write), 0);
    assert_int_equal(in_sandbox(by_change), 0);
    assert_int_equal(in_sandbox(by_signal), 0);
    assert_int_equal(in_sandbox(by_identity), 0);
    assert_int_equal(in_sandbox(by_priority), 0);
    assert_int_equal(in_sandbox(by_terminal), 0);
    assert_int_equal(in_sandbox(by_owner), 0);
    assert_int_equal(in_sandbox(by_limits_of_another), 0);
}

static void test_sandbox__allowed(void **state)
{
    (void)state;
    assert_int_equal(in_sandbox(by_reading), 0);
    assert_int_equal(in_sandbox(by_thread), 0);
    assert_int_equal(in_sandbox(by_own_limits), 0);
    assert_int_equal(in_sandbox(by_abort), 128 + SIGABRT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sandbox__privileges),
        cmocka_unit_test(test_sandbox__denied),
        cmocka_unit_test(test_sandbox__allowed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
