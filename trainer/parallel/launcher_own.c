/* launcher_own.c: implements launcher_own.h. The launcher forks one child per rank, then waits for
 * signals through a descriptor: on SIGCHLD it collects the ranks that have ended, and other signals
 * are passed on. After the first failure the others get a limited time to end. */
#include "trainer/parallel/launcher_own.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/program/log.h"
#include "common/base/proc.h"

/* How long the other ranks may go on after one has failed. They hear of it by the rank link and
 * must leave their work within five seconds; ranks that had not met yet would wait for the one that
 * failed. */
static const int64_t GRACE_NS = INT64_C(10) * 1000 * 1000 * 1000;

typedef struct ranks {
    pid_t *pid;        /* [count]; 0: the rank has ended */
    int count, left;   /* how many there are, and how many have not ended */
    int code;          /* exit code of the first that failed; 0: none has */
    int64_t failed_at; /* clock_ns() when it did */
} ranks;

/* Finds a port that is free now. Another process may take it before rank 0 listens there; rank 0
 * then fails with that reason. */
static status free_port(int *out)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return FAIL(ST_OS, "socket: %s", strerror(errno));
    if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &size) != 0) {
        close(fd);
        return FAIL(ST_OS, "no free port was found on loopback: %s", strerror(errno));
    }
    close(fd);
    *out = ntohs(address.sin_port);
    return ST_OK;
}

static int set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    return setenv(name, text, 1);
}

static status set_common(int count)
{
    int found = 0;
    if (!getenv("MASTER_PORT"))
        TRY(free_port(&found));
    if (set_number("WORLD_SIZE", count) != 0 || set_number("LOCAL_WORLD_SIZE", count) != 0 ||
        setenv("MASTER_ADDR", "127.0.0.1", 0) != 0 ||
        (found > 0 && set_number("MASTER_PORT", found) != 0))
        return FAIL(ST_NO_MEMORY, "no memory for the ranks' environment");
    return ST_OK;
}

/* Ranks have process groups of their own, so a terminal's interrupt reaches this process alone,
 * which passes it on to them. */
static status start_rank(char **command, int rank, pid_t *out)
{
    pid_t pid = -1;
    const status st = proc_fork(&pid);
    if (pid != 0) {
        *out = pid;
        return st;
    }
    if (st == ST_OK && set_number("RANK", rank) == 0 && set_number("LOCAL_RANK", rank) == 0) {
        execv(command[0], command);
        (void)FAIL(ST_OS, "%s: %s", command[0], strerror(errno));
    }
    log_status();
    _exit(status_exit_code(ST_OS));
}

static void signal_all(const ranks *all, int number)
{
    for (int i = 0; i < all->count; i++)
        if (all->pid[i] > 0)
            kill(all->pid[i], number);
}

bool launch_passes_on(int number)
{
    /* A signal that is blocked and ignored still arrives through the descriptor, and mpirun's ranks
     * no longer ignore it themselves. */
    return number != SIGCHLD && !(number == SIGHUP && proc_ignores(SIGHUP));
}

/* Whether the process is stopped, by SIGSTOP or a debugger. */
static bool is_stopped(pid_t pid)
{
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    if (fscanf(file, "%*d %*s %c", &state) != 1)
        state = 0;
    fclose(file);
    return state == 'T' || state == 't';
}

/* A rank that is stopped, which then is the reason why another one ended; -1 if there is none. */
static int find_stopped(const ranks *all)
{
    for (int i = 0; i < all->count; i++)
        if (all->pid[i] > 0 && is_stopped(all->pid[i]))
            return i;
    return -1;
}

static void tell_first_end(const ranks *all, int rank, const char *what)
{
    const int stopped = find_stopped(all);
    if (stopped < 0)
        log_error("rank %d ended first: %s", rank, what);
    else
        log_error("rank %d (pid %d) is stopped (SIGSTOP): rank %d ended because of it (%s)",
                  stopped, (int)all->pid[stopped], rank, what);
}

static void note_end(ranks *all, int rank, int how)
{
    char what[64];
    all->pid[rank] = 0;
    all->left--;
    if (WIFEXITED(how) && WEXITSTATUS(how) == 0)
        return;
    proc_end_of(how, what, sizeof what);
    if (all->code == 0) {
        tell_first_end(all, rank, what);
        all->code = WIFEXITED(how) ? WEXITSTATUS(how) : status_exit_code(ST_UNAVAILABLE);
        all->failed_at = clock_ns();
    }
}

static void reap_ranks(ranks *all)
{
    int how;
    for (int i = 0; i < all->count; i++)
        if (all->pid[i] > 0 && waitpid(all->pid[i], &how, WNOHANG) == all->pid[i])
            note_end(all, i, how);
}

/* Kills the ranks that did not end by themselves in time. */
static void end_late(const ranks *all)
{
    for (int i = 0; i < all->count; i++)
        if (all->pid[i] > 0 && is_stopped(all->pid[i]))
            log_error(
                "rank %d (pid %d) is still stopped (SIGSTOP), which ends the run; it is killed", i,
                (int)all->pid[i]);
        else if (all->pid[i] > 0)
            log_error("rank %d has not ended within %g s of the first failure and is killed", i,
                      (double)GRACE_NS * 1e-9);
    signal_all(all, SIGKILL);
}

static status wait_for_ranks(int signals, ranks *all)
{
    struct signalfd_siginfo info;
    bool killed = false;
    while (all->left > 0) {
        int64_t left = all->code ? all->failed_at + GRACE_NS - clock_ns() : -1;
        int ms = all->code == 0 || killed ? -1 : left > 0 ? (int)(left / 1000000) + 1 : 0;
        int ready = poll(&(struct pollfd){signals, POLLIN, 0}, 1, ms);
        if (ready < 0 && errno != EINTR)
            return FAIL(ST_OS, "poll: %s", strerror(errno));
        if (ready > 0 && read(signals, &info, sizeof info) == sizeof info &&
            launch_passes_on((int)info.ssi_signo))
            signal_all(all, (int)info.ssi_signo);
        reap_ranks(all);
        if (all->code && !killed && clock_ns() >= all->failed_at + GRACE_NS) {
            end_late(all);
            killed = true;
        }
    }
    return ST_OK;
}

static status run_ranks(char **command, int signals, ranks *all)
{
    status st = ST_OK;
    for (int i = 0; i < all->count && st == ST_OK; i++) {
        st = start_rank(command, i, &all->pid[i]);
        all->left += st == ST_OK;
    }
    if (st == ST_OK)
        return wait_for_ranks(signals, all);
    signal_all(all, SIGKILL);
    return st;
}

status launch_own(char **command, int count)
{
    int signals;
    ranks all = {.count = count};
    TRY(set_common(count));
    log_info("starting %d ranks: RANK=0..%d trainer %s ..", count, count - 1, command[1]);
    all.pid = calloc((size_t)count, sizeof *all.pid);
    if (!all.pid)
        return FAIL(ST_NO_MEMORY, "no memory for %d ranks", count);
    status st = proc_signal_fd(&signals);
    if (st == ST_OK) {
        st = run_ranks(command, signals, &all);
        close(signals);
    }
    free(all.pid);
    if (st == ST_OK && all.code != 0) { /* a rank's code; the rank has said why */
        fflush(NULL);
        _exit(all.code);
    }
    return st;
}
