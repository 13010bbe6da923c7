/* proc.h: processes and signals: spawn, reap, a signalfd, CPUs this process may use. */
#ifndef TESSERA_COMMON_PROC_H
#define TESSERA_COMMON_PROC_H

#include <stdint.h>
#include <sys/types.h>

#include "common/status.h"

/* posix_spawn of argv[0] (a path), inheriting stdout and stderr; stdin is /dev/null. The child dies
 * with SIGTERM if we die (PR_SET_PDEATHSIG is set by the child through proc_follow_parent). */
WARN_UNUSED status proc_spawn(char *const argv[], pid_t *out);
/* Called by a child right after start: ask for SIGTERM when the parent goes; ST_STOPPED if it has
 * gone already. */
WARN_UNUSED status proc_follow_parent(pid_t parent);
/* Exit codes a child of ours may choose beside those of sysexits. */
enum {
    PROC_EXIT_BUSY = 99,    /* something called exit() in the middle of its work: a crash */
    PROC_EXIT_AGAIN = 100,  /* it wants to be started anew */
    PROC_EXIT_ALL = 101,    /* it was told to go, and so are all beside it */
    PROC_EXIT_OUTSIDE = 128 /* plus the number of a crash signal that another process sent it */
};
/* How a child ended. */
typedef enum proc_end {
    PROC_END_LEFT,    /* with 0, a code of sysexits, PROC_EXIT_AGAIN or _ALL: its own choice */
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
/* CPUs by affinity and the cgroup's cpu.max quota, at least 1. */
int proc_cpus(void);
/* Resident set and its peak in bytes, from /proc/self. */
int64_t proc_rss_bytes(void);
int64_t proc_peak_rss_bytes(void);

#endif
