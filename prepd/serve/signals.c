/* signals.c: turns SIGTERM, SIGINT and SIGHUP into flags that the loop reads. */
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/program/log.h"
#include "prepd/serve/notify.h"
#include "prepd/serve/dispatch_state.h"

enum { DRAIN_S = 20 }; /* time that draining has after SIGTERM */

/* Begins to drain: what is in work is finished and sent, within a time limit, and nothing new
 * begins. */
static void drain(dispatch *state)
{
    state->draining = true;
    state->drain_ns = clock_ns() + (int64_t)DRAIN_S * 1000000000;
    notify_send("STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC=30000000\n");
}

void dispatch_signals(dispatch *state)
{
    struct signalfd_siginfo info;
    while (read(state->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo == SIGCHLD)
            continue; /* children are reaped after their last messages were read */
        if (info.ssi_signo == SIGHUP) {
            state->reload = true;
            continue;
        }
        state->stop_now |= state->signalled;
        state->signalled = true;
        if (info.ssi_signo == SIGTERM && !state->draining && !state->stop_now)
            drain(state);
        else
            state->stopping = true;
        log_info("%s signal=%s",
                 state->stop_now   ? "stopping at once"
                 : state->stopping ? "stopping; another signal stops at once"
                                   : "draining what is in work; another signal stops at once",
                 strsignal((int)info.ssi_signo));
    }
}
