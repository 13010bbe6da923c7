/* signals.c: tells the core of SIGTERM and SIGINT, and remembers SIGHUP. */
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "prepd/serve/notify.h"
#include "prepd/serve/shell.h"

void signals_read(shell *around)
{
    struct signalfd_siginfo info;
    while (read(around->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo == SIGCHLD)
            continue; /* children are reaped after their last messages were read */
        if (info.ssi_signo == SIGHUP) {
            around->reload = true;
            continue;
        }
        const bool drained = around->core->draining;
        dispatch_at(around->core, clock_ns());
        signal_came(around->core, info.ssi_signo == SIGTERM ? SIGNAL_DRAIN : SIGNAL_STOP,
                    strsignal((int)info.ssi_signo));
        if (around->core->draining && !drained)
            notify_send("STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC=30000000\n");
    }
}
