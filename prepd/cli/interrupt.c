#include "prepd/cli/interrupt.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "common/base/proc.h"
#include "common/program/bar.h"
#include "common/program/log.h"

static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
enum { N_SIGNALS = sizeof signals / sizeof *signals };

/* Signals go to the process as a whole, so this state is global. */
static atomic_int heard; /* the number of the first signal; 0: none came */
static client *_Atomic waits;
static bool listens;

/* Calls only what a signal handler may call: client_interrupt sets a flag. */
static void on_signal(int number)
{
    int none = 0;
    client *rows = atomic_load(&waits);
    atomic_compare_exchange_strong(&heard, &none, number);
    if (rows)
        client_interrupt(rows);
}

void interrupt_listen(void)
{
    const struct sigaction ours = {.sa_handler = on_signal};
    for (int k = 0; k < N_SIGNALS; k++)
        if (!proc_ignores(signals[k]))
            sigaction(signals[k], &ours, NULL);
    listens = true;
}

bool interrupt_heard(void)
{
    return atomic_load(&heard) != 0;
}

void interrupt_watch(client *rows)
{
    atomic_store(&waits, rows);
    if (rows && interrupt_heard()) /* it came before there was anything to tell */
        client_interrupt(rows);
}

void interrupt_end(void)
{
    const int number = atomic_load(&heard);
    for (int k = 0; listens && k < N_SIGNALS; k++)
        if (!proc_ignores(signals[k]))
            signal(signals[k], SIG_DFL);
    listens = false;
    if (!number)
        return;
    if (number != SIGPIPE) /* whoever closed the pipe reads no more */
        log_info("stopped before the end signal=\"%s\"", strsignal(number));
    bar_clear();
    fflush(stdout);
    raise(number);
}
