/* launcher.c: implements launcher.h for CPUs, through Open MPI's mpirun: its command line, the
 * signals that bypass it on their way to the ranks, and its end. Ranks on GPUs are started by
 * launcher_own.c. */
#include "trainer/parallel/launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/program/log.h"
#include "common/program/module.h"
#include "common/program/verb.h"
#include "common/base/proc.h"
#include "trainer/parallel/engine.h"
#include "trainer/parallel/launcher_own.h"

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

/* mpirun gets a process group of its own, so a terminal's interrupt reaches this process alone,
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
