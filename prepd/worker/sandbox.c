/* SPDX-License-Identifier: Apache-2.0 */
/* sandbox.c: the list of system calls that a worker may make, and the privileges that it keeps. A
 * worker that a new version of a library ends with EPERM probably needs a call added here. */
#include "prepd/worker/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <seccomp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

/* What the C library, ZeroMQ's thread, glib and libvips need to work on memory, open sockets and
 * files that are only read. */
static const char *const allowed[] = {
    /* memory */
    "brk",
    "madvise",
    "membarrier",
    "mlock",
    "mmap",
    "mprotect",
    "mremap",
    "msync",
    "munlock",
    "munmap",
    "memfd_create",
    "ftruncate",
    /* open descriptors */
    "close",
    "dup",
    "dup2",
    "dup3",
    "fadvise64",
    "fstat",
    "fstatfs",
    "getdents",
    "getdents64",
    "lseek",
    "pread64",
    "preadv",
    "preadv2",
    "pwrite64",
    "read",
    "readv",
    "write",
    "writev",
    "epoll_create1",
    "epoll_ctl",
    "epoll_pwait",
    "epoll_wait",
    "eventfd2",
    "pipe2",
    "poll",
    "ppoll",
    "pselect6",
    "select",
    /* the socket to the dispatcher */
    "getpeername",
    "getsockname",
    "getsockopt",
    "recvfrom",
    "recvmsg",
    "sendmsg",
    "sendto",
    "setsockopt",
    "shutdown",
    /* looking at files */
    "access",
    "faccessat",
    "faccessat2",
    "getcwd",
    "lstat",
    "newfstatat",
    "readlink",
    "readlinkat",
    "stat",
    "statfs",
    "statx",
    /* threads, time, the process's own signals */
    "arch_prctl",
    "clock_getres",
    "clock_gettime",
    "clock_nanosleep",
    "exit",
    "exit_group",
    "futex",
    "get_robust_list",
    "getcpu",
    "getitimer",
    "gettimeofday",
    "nanosleep",
    "restart_syscall",
    "rseq",
    "rt_sigaction",
    "rt_sigpending",
    "rt_sigprocmask",
    "rt_sigreturn",
    "rt_sigtimedwait",
    "sched_getparam",
    "sched_getscheduler",
    "sched_yield",
    "set_robust_list",
    "set_tid_address",
    "setitimer",
    "sigaltstack",
    "time",
    "times",
    "timer_create",
    "timer_delete",
    "timer_settime",
    /* questions about the process itself. sched_getaffinity may ask about any process, since glibc
     * asks about its threads by number (pthread_getattr_np), and asking changes nothing */
    "sched_getaffinity",
    "getegid",
    "geteuid",
    "getgid",
    "getgroups",
    "getpgrp",
    "getpid",
    "getppid",
    "getpriority",
    "getrandom",
    "getrlimit",
    "getrusage",
    "gettid",
    "getuid",
    "prctl",
    "sysinfo",
    "uname",
    "umask",
};

static int allow_call(scmp_filter_ctx filter, const char *name)
{
    const int number = seccomp_syscall_resolve_name(name);
    if (number == __NR_SCMP_ERROR)
        return 0; /* this architecture has no such call */
    return seccomp_rule_add(filter, SCMP_ACT_ALLOW, number, 0);
}

/* Allows one call with each of these values of one argument, compared as 64 bits. */
static int allow_values(scmp_filter_ctx filter, int number, unsigned argument,
                        const scmp_datum_t *value, size_t count)
{
    int bad = 0;
    for (size_t i = 0; i < count; i++)
        bad |= seccomp_rule_add(filter, SCMP_ACT_ALLOW, number, 1,
                                SCMP_CMP(argument, SCMP_CMP_EQ, value[i]));
    return bad;
}

#define COUNT(list) (sizeof(list) / sizeof(*(list)))

/* Allows calls that have many meanings in those that libraries need: not typing into a terminal,
 * not making a descriptor signal a process, not changing limits or CPUs of another process. */
static int allow_meanings(scmp_filter_ctx filter, scmp_datum_t self)
{
    static const scmp_datum_t of_ioctl[] = {FIONREAD, FIONBIO, FIOCLEX, TCGETS};
    static const scmp_datum_t of_fcntl[] = {F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD,     F_SETFD,
                                            F_GETFL, F_SETFL,         F_ADD_SEALS, F_GET_SEALS};
    /* libzmq sets the scheduling policy of each thread when it begins, and aborts if that fails; a
     * thread may begin after the list is in force. These policies gain no priority. */
    static const scmp_datum_t of_policy[] = {SCHED_OTHER, SCHED_BATCH, SCHED_IDLE};
    const scmp_datum_t own[] = {0, self};
    return allow_values(filter, SCMP_SYS(ioctl), 1, of_ioctl, COUNT(of_ioctl)) |
           allow_values(filter, SCMP_SYS(fcntl), 1, of_fcntl, COUNT(of_fcntl)) |
           allow_values(filter, SCMP_SYS(sched_setscheduler), 1, of_policy, COUNT(of_policy)) |
           allow_values(filter, SCMP_SYS(prlimit64), 0, own, COUNT(own)) |
           allow_values(filter, SCMP_SYS(sched_setaffinity), 0, own, COUNT(own));
}

/* Allows calls with some arguments only. */
static int allow_parts(scmp_filter_ctx filter)
{
    const scmp_datum_t changing = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC | O_APPEND;
    const scmp_datum_t self = (scmp_datum_t)getpid();
    int bad = allow_meanings(filter, self);
    bad |= seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(open), 1,
                            SCMP_A1(SCMP_CMP_MASKED_EQ, changing, 0));
    bad |= seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(openat), 1,
                            SCMP_A2(SCMP_CMP_MASKED_EQ, changing, 0));
    /* Threads may be started, processes not. clone3 has its flags in memory, where a filter cannot
     * see them; with ENOSYS glibc uses clone instead. */
    bad |= seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(clone), 1,
                            SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, CLONE_THREAD));
    bad |= seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
    /* abort() and raise() signal this process. */
    bad |=
        seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(tgkill), 1, SCMP_A0(SCMP_CMP_EQ, self));
    bad |= seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(kill), 1, SCMP_A0(SCMP_CMP_EQ, self));
#ifdef SANITIZED /* the leak check at exit stops all threads from another process */
    bad |= allow_call(filter, "ptrace") | allow_call(filter, "wait4") |
           allow_call(filter, "clone") | allow_call(filter, "process_vm_readv");
#endif
    return bad;
}

status sandbox_shed_privileges(void)
{
    static const uint32_t files = 1U << CAP_DAC_OVERRIDE | 1U << CAP_DAC_READ_SEARCH;
    struct __user_cap_header_struct self = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct had[_LINUX_CAPABILITY_U32S_3] = {{0}};
    struct __user_cap_data_struct kept[_LINUX_CAPABILITY_U32S_3] = {{0}};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || syscall(SYS_capget, &self, had) != 0)
        return FAIL(ST_OS, "cannot give up privileges: %s", strerror(errno));
    kept[0].effective = had[0].effective & files;
    kept[0].permitted = had[0].permitted & files;
    kept[0].inheritable = had[0].inheritable & files; /* a unit's AmbientCapabilities= */
    /* A service without capabilities may be denied even the call that gives them up. */
    if (memcmp(had, kept, sizeof(had)) == 0)
        return ST_OK;
    if (syscall(SYS_capset, &self, kept) != 0)
        return FAIL(ST_OS, "cannot give up privileges: %s", strerror(errno));
    return ST_OK;
}

status sandbox_enter(void)
{
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(EPERM));
    int bad = filter ? seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1) : -ENOMEM;
    for (size_t i = 0; !bad && i < COUNT(allowed); i++)
        bad = allow_call(filter, allowed[i]);
    if (!bad)
        bad = allow_parts(filter);
    if (!bad)
        bad = seccomp_load(filter);
    seccomp_release(filter);
    return bad ? FAIL(ST_OS, "cannot enter the sandbox: %s", strerror(-bad)) : ST_OK;
}
