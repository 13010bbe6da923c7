/* SPDX-License-Identifier: Apache-2.0 */
/* proc.h: processes and signals: starting a child, saying how it ended, receiving signals through a
 * descriptor, and the CPUs and memory of this process. */
#ifndef TESSERA_COMMON_BASE_PROC_H
#define TESSERA_COMMON_BASE_PROC_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/base/status.h"

/* Starts the program argv[0] (a path). It inherits stdout and stderr; its stdin is /dev/null. The
 * call does not wait: if the program cannot be started after all, that shows as a child that ends
 * with ST_OS's exit code. A child that is to die when its parent dies must ask for that itself
 * (proc_follow_parent). ST_OS if argv[0] cannot be executed or no process can be made. */
WARN_UNUSED status proc_spawn(char *const argv[], pid_t *out);
/* What a child starts with beside its words. All zeros is what proc_spawn gives. */
typedef struct proc_child {
    char *const *argv; /* ended by NULL */
    int program;       /* a descriptor of the program, whatever lies at argv[0] by now; 0: none */
    const char *input; /* what it can read from its stdin, at most PIPE_BUF bytes; NULL: nothing */
    const int *kept;   /* [n_kept] descriptors that it inherits, under the same numbers */
    int n_kept;
} proc_child;
WARN_UNUSED status proc_spawn_child(const proc_child *child, pid_t *out);
/* The same; what the child writes to its stdout can be read from *out_fd, which does not block and
 * which the caller closes. */
WARN_UNUSED status proc_spawn_reading(const proc_child *child, pid_t *out, int *out_fd);
/* Moves a descriptor to a number above those of stdin, stdout and stderr, which this process may
 * have been started without. It is closed in programs that are started. The old one is closed. -1,
 * with errno, if there is no such number, or if fd is negative. */
int proc_fd_above(int fd);
/* Called by a child right after its start: asks the kernel to send it this signal when the parent
 * ends. A stopped child acts on SIGTERM only once it is continued, on SIGKILL at once. ST_STOPPED
 * if the parent has ended already. */
WARN_UNUSED status proc_follow_parent(pid_t parent, int sig);
/* Forks a child that will exec. The child is in its own process group, so that Ctrl-C reaches
 * only the parent; it has no blocked signals, and gets SIGTERM when the parent ends. *out is 0 in
 * the child. A failure that is returned in the child is the child's to log before it exits. Call
 * before any thread starts. */
WARN_UNUSED status proc_fork(pid_t *out);
/* Exit codes that our children use besides those of sysexits.h. */
enum {
    PROC_EXIT_BUSY = 99, /* a library called exit() in the middle of the work: counts as a crash */
    PROC_EXIT_AGAIN = 100,   /* the child asks to be started again */
    PROC_EXIT_DIFFERS = 101, /* a supervised worker was refused with ST_MISMATCH */
    PROC_EXIT_OUTSIDE = 128  /* plus the number of a crash signal that another process sent it */
};
/* How a child ended, which decides who is blamed for it. */
typedef enum proc_end {
    PROC_END_LEFT,    /* it chose to: exit code 0, a code of sysexits.h, or PROC_EXIT_AGAIN */
    PROC_END_OUTSIDE, /* by a signal from another process or from the kernel's out-of-memory
                       * killer */
    PROC_END_CRASH,   /* by a crash that it caused itself */
    PROC_END_TIME,    /* by its own time limit (SIGALRM) */
} proc_end;
/* Classifies the status that waitpid gave. what[size] gets words for a log, such as "signal 9
 * (Killed)". */
proc_end proc_end_of(int wstatus, char *what, size_t size);
/* Writes the path of the running program. */
WARN_UNUSED status proc_self_path(char *out, size_t size);
/* Gives a descriptor of the running program, for proc_child. */
WARN_UNUSED status proc_self_open(int *out_fd);
/* Blocks SIGTERM, SIGINT, SIGHUP and SIGCHLD in this process, and gives a descriptor from which
 * they can be read instead (signalfd). Call before any thread starts, since threads inherit the
 * mask. */
WARN_UNUSED status proc_signal_fd(int *out_fd);
/* Whether this process ignores the signal, as it does SIGHUP if nohup started it. */
bool proc_ignores(int sig);
/* The number of CPUs that this process may use, by its affinity and its cgroups' quotas; at
 * least 1. */
int proc_cpus(void);
/* What each of `processes` on this machine gets of them if they are divided; at least 1. A launcher
 * may have bound each process to some CPUs already; they are divided all the same, since others may
 * be bound to them too. */
int proc_cpus_each(int processes);
/* Resident memory of this process and its peak so far, in bytes; 0 if /proc cannot be read. */
int64_t proc_rss_bytes(void);
int64_t proc_peak_rss_bytes(void);

#endif
