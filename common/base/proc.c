/* SPDX-License-Identifier: Apache-2.0 */
/* proc.c: see proc.h. proc_cpus is in cpus.c. */
#include "common/base/proc.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

/* The ends of a child's pipes; -1: it has none. */
typedef struct child_pipes {
    int in, out;
} child_pipes;

/* Gives the child the descriptors that it is to have. */
static bool arrange(const proc_child *child, const child_pipes *pipes)
{
    int in = pipes->in;
    if (in < 0) {
        close(STDIN_FILENO); /* so that the next open gets this descriptor, the lowest free one */
        in = open("/dev/null", O_RDONLY);
    }
    bool done = in == STDIN_FILENO || dup2(in, STDIN_FILENO) == STDIN_FILENO;
    if (pipes->out >= 0)
        done &= dup2(pipes->out, STDOUT_FILENO) == STDOUT_FILENO;
    for (int i = 0; i < child->n_kept; i++)
        done &= fcntl(child->kept[i], F_SETFD, 0) == 0;
    return done;
}

/* Runs in the child between fork and exec. Another thread may have held any lock at the fork, so
 * only functions that are safe in a signal handler may be called. */
static _Noreturn void become(const proc_child *child, const child_pipes *pipes)
{
    static const char words[] = "cannot be started\n";
    const struct sigaction normal = {.sa_handler = SIG_DFL};
    const char *path = child->argv[0];
    sigset_t none;
    for (int sig = 1; sig < NSIG; sig++)
        sigaction(sig, &normal, NULL); /* fails for SIGKILL, SIGSTOP and libc's own; that is fine */
    /* The child must not inherit the signals that proc_signal_fd blocks. */
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (arrange(child, pipes)) {
        if (child->program > 0)
            fexecve(child->program, child->argv, environ);
        else
            execv(path, child->argv);
    }
    (void)!write(STDERR_FILENO, path, strlen(path));
    (void)!write(STDERR_FILENO, ": ", 2);
    (void)!write(STDERR_FILENO, words, sizeof words - 1);
    _exit(status_exit_code(ST_OS));
}

int proc_fd_above(int fd)
{
    if (fd < 0 || fd > STDERR_FILENO)
        return fd;
    const int above = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    close(fd);
    return above;
}

/* A pipe whose ends are above the standard descriptors, which arrange() fills. */
static status open_pipe(const char *program, int ends[2])
{
    if (pipe2(ends, O_CLOEXEC) != 0)
        return FAIL(ST_OS, "no pipe for %s: %s", program, strerror(errno));
    for (int i = 0; i < 2; i++)
        ends[i] = proc_fd_above(ends[i]);
    if (ends[0] >= 0 && ends[1] >= 0)
        return ST_OK;
    const status st = FAIL(ST_OS, "no pipe for %s: %s", program, strerror(errno));
    close(ends[0]);
    close(ends[1]);
    return st;
}

/* A pipe that holds the input already, and whose other end is closed. */
static status open_input(const proc_child *child, int *out)
{
    int ends[2];
    const size_t size = strlen(child->input);
    TRY(open_pipe(child->argv[0], ends));
    const bool written = write(ends[1], child->input, size) == (ssize_t)size;
    close(ends[1]);
    if (!written) {
        close(ends[0]);
        return FAIL(ST_OS, "cannot write the input of %s: %s", child->argv[0], strerror(errno));
    }
    *out = ends[0];
    return ST_OK;
}

/* posix_spawn is not used because it waits until the child has executed the program, which is for
 * ever if someone stops the child (SIGSTOP) before that. */
static status spawn(const proc_child *child, int out_fd, pid_t *out)
{
    const char *path = child->argv[0];
    child_pipes pipes = {-1, out_fd};
    if (child->program <= 0 && access(path, X_OK) != 0)
        return FAIL(ST_OS, "cannot start %s: %s", path, strerror(errno));
    if (child->input)
        TRY(open_input(child, &pipes.in));
    const pid_t pid = fork();
    if (pid == 0)
        become(child, &pipes);
    const int error = errno;
    if (pipes.in >= 0)
        close(pipes.in);
    if (pid < 0)
        return FAIL(ST_OS, "cannot start %s: %s", path, strerror(error));
    *out = pid;
    return ST_OK;
}

status proc_spawn(char *const argv[], pid_t *out)
{
    const proc_child child = {.argv = argv};
    return spawn(&child, -1, out);
}

status proc_spawn_child(const proc_child *child, pid_t *out)
{
    return spawn(child, -1, out);
}

status proc_spawn_reading(const proc_child *child, pid_t *out, int *out_fd)
{
    int ends[2];
    TRY(open_pipe(child->argv[0], ends));
    status st = spawn(child, ends[1], out);
    close(ends[1]);
    if (st == ST_OK && fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0)
        st = FAIL(ST_OS, "fcntl: %s", strerror(errno));
    if (st != ST_OK)
        close(ends[0]);
    else
        *out_fd = ends[0];
    return st;
}

status proc_follow_parent(pid_t parent, int sig)
{
    if (prctl(PR_SET_PDEATHSIG, (unsigned long)sig) != 0)
        return FAIL(ST_OS, "prctl(PR_SET_PDEATHSIG): %s", strerror(errno));
    /* If the parent ended before the prctl, the kernel will not send the signal. */
    if (getppid() != parent)
        return FAIL(ST_STOPPED, "the process that started this one (pid %d) has ended",
                    (int)parent);
    return ST_OK;
}

status proc_fork(pid_t *out)
{
    const pid_t parent = getpid(), pid = fork();
    if (pid < 0)
        return FAIL(ST_OS, "fork: %s", strerror(errno));
    *out = pid;
    if (pid > 0)
        return ST_OK;
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setpgid(0, 0);
    return proc_follow_parent(parent, SIGTERM);
}

/* Signals that a process causes by what it does itself. No decoder sends itself any other; those
 * come from outside (an operator, a test, the kernel's out-of-memory killer). */
static bool is_crash(int sig)
{
    static const int crashes[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGSYS, SIGTRAP};
    for (size_t i = 0; i < sizeof(crashes) / sizeof(*crashes); i++)
        if (sig == crashes[i])
            return true;
    return false;
}

proc_end proc_end_of(int wstatus, char *what, size_t size)
{
    if (WIFSIGNALED(wstatus)) {
        const int sig = WTERMSIG(wstatus);
        snprintf(what, size, "signal %d (%s)", sig, strsignal(sig));
        return sig == SIGALRM ? PROC_END_TIME : is_crash(sig) ? PROC_END_CRASH : PROC_END_OUTSIDE;
    }
    const int code = WEXITSTATUS(wstatus);
    if (code > PROC_EXIT_OUTSIDE && is_crash(code - PROC_EXIT_OUTSIDE)) {
        snprintf(what, size, "signal %d (%s), sent by another process", code - PROC_EXIT_OUTSIDE,
                 strsignal(code - PROC_EXIT_OUTSIDE));
        return PROC_END_OUTSIDE;
    }
    if (code == PROC_EXIT_BUSY) {
        snprintf(what, size, "exit() in the middle of a sample");
        return PROC_END_CRASH;
    }
    if (code == PROC_EXIT_AGAIN) {
        snprintf(what, size, "restarts");
        return PROC_END_LEFT;
    }
    snprintf(what, size, "exit code %d", code);
    return code == 0 || (code >= 64 && code <= 78) ? PROC_END_LEFT : PROC_END_CRASH;
}

status proc_self_path(char *out, size_t size)
{
    ssize_t length = readlink("/proc/self/exe", out, size);
    if (length < 0)
        return FAIL_IN(ST_OS, "/proc/self/exe", "readlink: %s", strerror(errno));
    if ((size_t)length >= size)
        return FAIL_IN(ST_OS, "/proc/self/exe", "the path is longer than %zu bytes", size);
    out[length] = 0;
    return ST_OK;
}

status proc_self_open(int *out_fd)
{
    const int fd = proc_fd_above(open("/proc/self/exe", O_PATH | O_CLOEXEC));
    if (fd < 0)
        return FAIL_IN(ST_OS, "/proc/self/exe", "cannot be opened: %s", strerror(errno));
    *out_fd = fd;
    return ST_OK;
}

status proc_signal_fd(int *out_fd)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGCHLD);
    int err = pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (err)
        return FAIL(ST_OS, "pthread_sigmask: %s", strerror(err));
    int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0)
        return FAIL(ST_OS, "signalfd: %s", strerror(errno));
    *out_fd = fd;
    return ST_OK;
}

bool proc_ignores(int sig)
{
    struct sigaction action;
    return sigaction(sig, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

int64_t proc_rss_bytes(void)
{
    long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (!file)
        return 0;
    if (fscanf(file, "%*s %lld", &pages) != 1)
        pages = 0;
    fclose(file);
    return (int64_t)pages * sysconf(_SC_PAGESIZE);
}

int64_t proc_peak_rss_bytes(void)
{
    long long kib = 0;
    char line[256];
    FILE *file = fopen("/proc/self/status", "re");
    if (!file)
        return 0;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "VmHWM: %lld kB", &kib) == 1)
            break;
    fclose(file);
    return (int64_t)kib * 1024;
}
