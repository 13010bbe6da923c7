#include "trainer/stop.h"

#include <signal.h>
#include <stddef.h>
#include <stdatomic.h>

#include "common/clock.h"

/* Signals are of the process, so this state is too. */
static atomic_bool asked;
static _Atomic int64_t asked_ns;

static void on_signal(int number)
{
    (void)number;
    atomic_store(&asked_ns, clock_ns()); /* clock_gettime may be called here */
    atomic_store(&asked, true);
}

void stop_listen(void)
{
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGINT, &a, NULL);
}

bool stop_asked(void)
{
    return atomic_load(&asked);
}

int64_t stop_asked_ns(void)
{
    return atomic_load(&asked_ns);
}
