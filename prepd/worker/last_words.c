/* SPDX-License-Identifier: Apache-2.0 */
/* last_words.c: handlers for crashes and for exit() in the middle of a lease. */
#include "prepd/worker/last_words.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/proc.h"

enum {
    STACK_BYTES = 65536,
    FLUSH_MS = 20 /* time for ZeroMQ's thread; an idle machine needs less than 1 */
};

/* Signal handlers can only reach what is static. */
static volatile sig_atomic_t busy_now;
static char handler_stack[STACK_BYTES];

static void wait_for_flush(void)
{
    struct timespec now = {0, FLUSH_MS * 1000000L};
    if (busy_now)
        nanosleep(&now, NULL);
}

/* True if another process sent the signal. A fault has a code above 0; kill, tgkill and sigqueue
 * have not, and give the sender's pid, which for abort() and raise() is our own. */
static bool came_from_outside(const siginfo_t *info)
{
    return info->si_code <= 0 && info->si_pid != getpid();
}

static void on_crash(int sig, siginfo_t *info, void *context)
{
    (void)context;
    if (came_from_outside(info))
        _exit(PROC_EXIT_OUTSIDE + sig); /* no sample is to blame, so nothing need be sent */
    wait_for_flush();
    signal(sig, SIG_DFL);
    raise(sig); /* delivered when this handler returns: the parent sees the true cause */
}

/* A library that calls exit() in the middle of a lease has given up: that counts as a crash,
 * whatever code it gave. */
static void on_exit_busy(void)
{
    wait_for_flush();
    if (busy_now)
        _exit(PROC_EXIT_BUSY);
}

void last_words_busy(bool busy)
{
    busy_now = busy;
}

status last_words_install(void)
{
    static const int signals[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGSYS, SIGTRAP};
    const stack_t stack = {.ss_sp = handler_stack, .ss_size = sizeof(handler_stack)};
    struct sigaction old, ours = {.sa_sigaction = on_crash, .sa_flags = SA_ONSTACK | SA_SIGINFO};
    if (sigaltstack(&stack, NULL) != 0)
        return FAIL(ST_OS, "cannot set the signal stack: %s", strerror(errno));
    for (size_t i = 0; i < sizeof(signals) / sizeof(*signals); i++) {
        if (sigaction(signals[i], NULL, &old) != 0)
            return FAIL(ST_OS, "cannot set a signal handler: %s", strerror(errno));
        if (old.sa_handler == SIG_DFL && sigaction(signals[i], &ours, NULL) != 0)
            return FAIL(ST_OS, "cannot set a signal handler: %s", strerror(errno));
    }
    return atexit(on_exit_busy) == 0 ? ST_OK : FAIL(ST_OS, "cannot install an exit handler");
}
