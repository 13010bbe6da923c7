/* SPDX-License-Identifier: Apache-2.0 */
/* launcher.c: implements launcher.h: which device and engine the ranks get, ranks on GPUs that this
 * process starts itself, and ranks on CPUs through Open MPI's mpirun: its command line, the signals
 * that bypass it on their way to the ranks, and its end. */
#include "trainer/parallel/launcher.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/proc.h"
#include "common/base/status.h"
#include "common/program/log.h"
#include "common/program/module.h"
#include "common/program/verb.h"
#include "trainer/device/backend.h"
#include "trainer/ops/open.h"

/* ---- which device and which engine ---- */

/* A GPU is tried by opening it. The launcher does so in a child
 * process, since its ranks are forked from it and must find CUDA untouched. */

static bool is_open(const conf *options)
{
    return options->training_backend == BACKEND_AUTO && options->comm_engine == ENGINE_AUTO;
}

/* Takes the GPU if it can be opened, otherwise the CPU, as a run of one rank would. */
static status find_backend(conf *options, int gpu)
{
    device_options how = {.index = gpu, .threads = 1, .attention = options->training_attention};
    device *dev = NULL;
    TRY(device_open(BACKEND_AUTO, &how, &dev));
    options->training_backend = dev->backend->immediate ? BACKEND_CPU : BACKEND_CUDA;
    device_close(&dev);
    return ST_OK;
}

status engine_choose(conf *options, int gpu)
{
    if (is_open(options))
        TRY(find_backend(options, gpu));
    if (options->comm_engine == ENGINE_AUTO)
        options->comm_engine = options->training_backend == BACKEND_CUDA ? ENGINE_NCCL : ENGINE_MPI;
    if (options->comm_engine == ENGINE_MPI)
        return ST_OK;
    if (options->training_backend == BACKEND_CPU)
        return FAIL(ST_CONFIG, "comm.engine is nccl, which works between GPUs, but "
                               "training.backend is cpu: leave one of them at auto");
    options->training_backend = BACKEND_CUDA;
    return ST_OK;
}

status engine_choose_apart(conf *options)
{
    int how;
    if (!is_open(options))
        return engine_choose(options, 0);
    pid_t child = fork();
    if (child == 0) {
        status st = engine_choose(options, 0);
        if (st != ST_OK)
            log_status();
        _exit(st != ST_OK ? status_exit_code(st) : options->training_backend == BACKEND_CUDA);
    }
    if (child < 0 || waitpid(child, &how, 0) != child)
        return FAIL(ST_OS, "fork: %s", strerror(errno));
    if (!WIFEXITED(how) || WEXITSTATUS(how) > 1)
        return FAIL(ST_UNAVAILABLE, "it could not be determined whether this machine has a GPU "
                                    "that works: see the error above");
    options->training_backend = WEXITSTATUS(how) == 1 ? BACKEND_CUDA : BACKEND_CPU;
    return engine_choose(options, 0);
}

/* ---- ranks that this process starts itself ---- */

/* The launcher forks one child per rank, then waits for
 * signals through a descriptor: on SIGCHLD it collects the ranks that have ended, and other signals
 * are passed on. After the first failure the others get a limited time to end. */

/* How long the other ranks may go on after one has failed. They hear of it by the rank link and
 * must leave their work within five seconds; ranks that had not met yet would wait for the one that
 * failed. */
static const int64_t GRACE_NS = INT64_C(10) * 1000 * 1000 * 1000;

typedef struct rank_processes {
    pid_t *pid;        /* [count]; 0: the rank has ended */
    int count, left;   /* how many there are, and how many have not ended */
    int code;          /* exit code of the first that failed; 0: none has */
    int64_t failed_at; /* clock_ns() when it did */
} rank_processes;

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

/* Ranks have their own process groups, so a terminal's interrupt reaches this process alone,
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

static void signal_all(const rank_processes *all, int number)
{
    for (int i = 0; i < all->count; i++)
        if (all->pid[i] > 0)
            kill(all->pid[i], number);
}

/* Whether a launcher passes a signal that it read (proc_signal_fd) on to its ranks: SIGTERM and
 * SIGINT always, SIGHUP unless this process was started to ignore it (nohup). */
static bool launch_passes_on(int number)
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
static int find_stopped(const rank_processes *all)
{
    for (int i = 0; i < all->count; i++)
        if (all->pid[i] > 0 && is_stopped(all->pid[i]))
            return i;
    return -1;
}

static void tell_first_end(const rank_processes *all, int rank, const char *what)
{
    const int stopped = find_stopped(all);
    if (stopped < 0)
        log_error("rank %d ended first: %s", rank, what);
    else
        log_error("rank %d (pid %d) is stopped (SIGSTOP): rank %d ended because of it (%s)",
                  stopped, (int)all->pid[stopped], rank, what);
}

static void note_end(rank_processes *all, int rank, int how)
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

static void reap_ranks(rank_processes *all)
{
    int how;
    for (int i = 0; i < all->count; i++)
        if (all->pid[i] > 0 && waitpid(all->pid[i], &how, WNOHANG) == all->pid[i])
            note_end(all, i, how);
}

/* Kills the ranks that did not end by themselves in time. */
static void end_late(const rank_processes *all)
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

static status wait_for_ranks(int signals, rank_processes *all)
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

static status run_ranks(char **command, int signals, rank_processes *all)
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

/* Starts `count` processes and waits for them. command: a path and its arguments, ending with NULL.
 * Rank 0 listens at MASTER_ADDR, or on loopback if that is not set, and at MASTER_PORT, or if that is not
 * set at a free port, which is passed to all ranks.
 *
 * Signals for which launch_passes_on is true go to all ranks. When a rank fails, the others have
 * ten seconds to say why and to end; then they are killed and this process exits with the code of
 * the first that failed. Returns ST_OK if all ended well. */
static status launch_own(char **command, int count)
{
    int signals;
    rank_processes all = {.count = count};
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

/* ---- the launcher ---- */

enum { RANKS_MAX = 1024 };

/* Run as root, as in containers; allow more ranks than cores, and do not bind them to cores. */
static const char *const mpirun_settings[] = {"--allow-run-as-root", "--oversubscribe", "--bind-to",
                                              "none"};
enum { N_SETTINGS = sizeof mpirun_settings / sizeof *mpirun_settings };

/* Set in the environment, because Open MPI 5 refuses some of these on its command line and ignores
 * those of version 4 here. A value that the user has set stays:
 * - yield while waiting: ranks that spin on a shared core are a thousand times slower;
 * - use shared memory and loopback only, since all ranks are here (loopback.c does the rest);
 * - give ranks 3 seconds to say what happened when one has died, before they are killed (version 5
 *   always waits for one second);
 * - believe a rank's exit code 0: a rank that waits two seconds for mpirun's answer to its goodbye
 *   ends without it, and would be a failure with exit code 1;
 * - print nothing of mpirun's own; version 5 has a few lines all the same when a rank fails. */
static const char *const mpirun_environment[][2] = {
    {"OMPI_MCA_mpi_yield_when_idle", "1"},
    {"OMPI_MCA_btl", "self,vader"},
    {"OMPI_MCA_oob_tcp_if_include", "lo"},
    {"PMIX_MCA_ptl_tcp_if_include", "lo"},
    {"OMPI_MCA_odls_base_sigkill_timeout", "3"},
    {"OMPI_MCA_orte_allowed_exit_without_sync", "1"},
    {"PRTE_MCA_prte_allowed_exit_without_sync", "1"},
    {"OMPI_MCA_orte_execute_quiet", "1"},
    {"PRTE_MCA_prte_execute_quiet", "1"},
};

status launch_take(int *argc, char **argv, int *out)
{
    int kept = 1;
    *out = 0;
    for (int i = 1; i < *argc; i++) {
        if (strcmp(argv[i], "--nproc") != 0) {
            argv[kept++] = argv[i];
            continue;
        }
        char *end = NULL;
        long count = i + 1 < *argc ? strtol(argv[i + 1], &end, 10) : 0;
        if (count < 1 || count > RANKS_MAX || *end)
            return FAIL(ST_USAGE, "--nproc takes the number of ranks to start here, from 1 to %d",
                        RANKS_MAX);
        *out = (int)count;
        i++;
    }
    *argc = kept;
    return ST_OK;
}

/* Fills `to`, which must have room for it, with mpirun's command line, and logs it. */
static void command_line(char **to, char *self, char *count, int argc, char **argv)
{
    char said[1024] = "";
    int k = 0;
    to[k++] = (char *)"mpirun";
    to[k++] = (char *)"-np";
    to[k++] = count;
    for (int i = 0; i < N_SETTINGS; i++)
        to[k++] = (char *)mpirun_settings[i];
    for (int i = 0; i < k; i++)
        snprintf(said + strlen(said), sizeof said - strlen(said), " %s", to[i]);
    log_info("starting %s ranks:%s trainer %s ..", count, said, argv[0]);
    to[k++] = self;
    for (int i = 0; i < argc; i++)
        to[k++] = argv[i];
}

/* Puts loopback.c's library in front of what LD_PRELOAD names already. It is named by a descriptor,
 * since its path may contain the blanks and colons that separate names there. */
static status preload(const char *path)
{
    const char *others = getenv("LD_PRELOAD");
    char value[PATH_MAX];
    const int fd = open(path, O_RDONLY);
    if (fd < 0)
        return FAIL_IN(ST_OS, path, "cannot be opened: %s", strerror(errno));
    const int length = snprintf(value, sizeof value, "/proc/self/fd/%d%s%s", fd,
                                others && *others ? ":" : "", others ? others : "");
    if (length >= (int)sizeof value || setenv("LD_PRELOAD", value, 1) != 0)
        return FAIL(ST_NO_MEMORY, "LD_PRELOAD cannot be set: its value is too long");
    return ST_OK;
}

/* mpirun gets its own process group, so a terminal's interrupt reaches this process alone,
 * which passes it on to the ranks. */
static status start_mpirun(char **command, const char *loopback, pid_t *out)
{
    pid_t pid = -1;
    status st = proc_fork(&pid);
    if (pid != 0) {
        *out = pid;
        return st;
    }
    if (st == ST_OK)
        st = preload(loopback);
    for (size_t i = 0; i < sizeof mpirun_environment / sizeof *mpirun_environment; i++)
        if (st == ST_OK && setenv(mpirun_environment[i][0], mpirun_environment[i][1], 0) != 0)
            st = FAIL(ST_NO_MEMORY, "no memory for mpirun's environment");
    if (st == ST_OK) {
        execvp(command[0], command);
        (void)FAIL(ST_UNAVAILABLE,
                   "mpirun cannot be started: %s (CPU ranks run under Open MPI; "
                   "deploy/install-deps installs it)",
                   strerror(errno));
    }
    log_status();
    _exit(status_exit_code(ST_UNAVAILABLE));
}

/* Sends a signal to the ranks themselves. If mpirun passed it on, it would kill them a few seconds
 * later; this way they have the time they need for a checkpoint. */
static void signal_ranks(pid_t mpirun, int number)
{
    char path[64];
    int pid;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)mpirun, (int)mpirun);
    FILE *file = fopen(path, "re");
    while (file && fscanf(file, "%d", &pid) == 1)
        kill(pid, number);
    if (file)
        fclose(file);
}

static status wait_for_mpirun(int signals, pid_t mpirun)
{
    struct signalfd_siginfo info;
    int how;
    char what[64];
    for (;;) {
        if (poll(&(struct pollfd){signals, POLLIN, 0}, 1, -1) < 0 ||
            read(signals, &info, sizeof info) != sizeof info)
            return FAIL(ST_OS, "signalfd: %s", strerror(errno));
        if (info.ssi_signo != SIGCHLD) {
            if (launch_passes_on((int)info.ssi_signo))
                signal_ranks(mpirun, (int)info.ssi_signo);
            continue;
        }
        if (waitpid(mpirun, &how, WNOHANG) != mpirun)
            continue;
        if (WIFEXITED(how) && WEXITSTATUS(how) != 0) { /* a rank's code; the rank has said why */
            fflush(NULL);
            _exit(WEXITSTATUS(how));
        }
        if (WIFEXITED(how))
            return ST_OK;
        proc_end_of(how, what, sizeof what);
        return FAIL(ST_UNAVAILABLE, "mpirun ended by %s", what);
    }
}

static status run_mpirun(char *self, int ranks, int argc, char **argv)
{
    char count[16], loopback[PATH_MAX];
    int signals;
    pid_t mpirun;
    TRY(module_find("libtessera_loopback.so", "library for mpirun", "where libopenmpi-dev is found",
                    loopback, sizeof loopback));
    char **command = calloc((size_t)argc + N_SETTINGS + 8, sizeof *command);
    if (!command)
        return FAIL(ST_NO_MEMORY, "no memory for the command line of mpirun");
    snprintf(count, sizeof count, "%d", ranks);
    command_line(command, self, count, argc, argv);
    status st = proc_signal_fd(&signals);
    if (st == ST_OK) {
        st = start_mpirun(command, loopback, &mpirun);
        if (st == ST_OK)
            st = wait_for_mpirun(signals, mpirun);
        close(signals);
    }
    free(command);
    return st;
}

static status run_own(char *self, int ranks, int argc, char **argv)
{
    char **command = calloc((size_t)argc + 2, sizeof *command);
    if (!command)
        return FAIL(ST_NO_MEMORY, "no memory for the command line of a rank");
    command[0] = self;
    for (int i = 0; i < argc; i++)
        command[1 + i] = argv[i];
    status st = launch_own(command, ranks);
    free(command);
    return st;
}

status launch_ranks(conf *options, int ranks, int argc, char **argv)
{
    char self[PATH_MAX];
    TRY(proc_self_path(self, sizeof self));
    if (getenv("OMPI_COMM_WORLD_RANK") || getenv("RANK"))
        return FAIL(ST_USAGE, "--nproc starts ranks, but this process is already a rank, started "
                              "by mpirun or torchrun: leave --nproc out");
    signal(SIGPIPE, SIG_IGN); /* the reader of our log may leave, which must not end the ranks */
    TRY(engine_choose_apart(options));
    if (options->comm_engine == ENGINE_MPI)
        return run_mpirun(self, ranks, argc, argv);
    return run_own(self, ranks, argc, argv);
}

status launch_again(int ranks, const conf_need *needs, status (*check)(conf *, int), int argc,
                    char **argv)
{
    conf options;
    int rest = argc;
    char **copy = calloc((size_t)argc + 1, sizeof *copy);
    if (!copy)
        return FAIL(ST_NO_MEMORY, "no memory for the command line");
    memcpy(copy, argv, (size_t)argc * sizeof *copy);
    status st = verb_load(&options, &rest, copy, needs);
    if (st == ST_OK) {
        log_init("trainer", options.log_level, options.log_json);
        if (options.parallelism_world_size == 0) /* as the ranks themselves do in world_fit */
            options.parallelism_world_size = ranks;
        st = check(&options, ranks);
        if (st == ST_OK)
            st = launch_ranks(&options, ranks, argc, argv);
        conf_done(&options);
    }
    free(copy);
    return st;
}
