/* proc.h: processes and signals: spawn, reap, a signalfd, CPUs this process may use. */
#ifndef TESSERA_COMMON_BASE_PROC_H
#define TESSERA_COMMON_BASE_PROC_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/base/status.h"

/* Starts argv[0] (a path), inheriting stdout and stderr; stdin is /dev/null. Waits for nothing:
 * what cannot be started after all is a child that ends with the exit code of OS. The child dies
 * if we die where it asks for that itself (proc_follow_parent). */
WARN_UNUSED status proc_spawn(char *const argv[], pid_t *out);
/* The same; what the child writes to its stdout comes out of *out_fd, which does not block. */
WARN_UNUSED status proc_spawn_reading(char *const argv[], pid_t *out, int *out_fd);
/* Called by a child right after start: ask for this signal when the parent goes (SIGTERM waits in a
 * process that somebody stopped, SIGKILL does not); ST_STOPPED if it has gone already. */
WARN_UNUSED status proc_follow_parent(pid_t parent, int sig);
/* fork, for a child that execs: in a process group of its own, so that a terminal's interrupt goes
 * to us alone, without blocked signals, and told SIGTERM when we go. *out is 0 in the child, whose
 * failures are its own: it logs them and leaves. Call before any thread starts. */
WARN_UNUSED status proc_fork(pid_t *out);
/* Exit codes a child of ours may choose beside those of sysexits. */
enum {
    PROC_EXIT_BUSY = 99,    /* something called exit() in the middle of its work: a crash */
    PROC_EXIT_AGAIN = 100,  /* it wants to be started anew */
    PROC_EXIT_OUTSIDE = 128 /* plus the number of a crash signal that another process sent it */
};
/* How a child ended. */
typedef enum proc_end {
    PROC_END_LEFT,    /* with 0, a code of sysexits or PROC_EXIT_AGAIN: its own choice */
    PROC_END_OUTSIDE, /* by a signal that another process (or the kernel's memory killer) sent */
    PROC_END_CRASH,   /* by a crash of its own doing */
    PROC_END_TIME,    /* by its own time limit (SIGALRM) */
} proc_end;
/* Of waitpid's status; what gets the words for a log ("signal 9 (Killed)"). */
proc_end proc_end_of(int wstatus, char *what, size_t size);
/* Path of the running program. */
WARN_UNUSED status proc_self_path(char *out, size_t size);
/* Blocks TERM, INT, HUP, CHLD for this process and gives a descriptor that becomes readable. Call
 * before any thread starts. */
WARN_UNUSED status proc_signal_fd(int *out_fd);
/* Whether this process ignores the signal, as it does SIGHUP where nohup started it. */
bool proc_ignores(int sig);
/* CPUs by affinity and the cgroup's cpu.max quota, at least 1. */
int proc_cpus(void);
/* Resident set and its peak in bytes, from /proc/self. */
int64_t proc_rss_bytes(void);
int64_t proc_peak_rss_bytes(void);

#endif
