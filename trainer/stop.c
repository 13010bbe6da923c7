#include "trainer/stop.h"

#include <signal.h>
#include <stddef.h>
#include <stdatomic.h>

#include "common/clock.h"

/* Signals are of the process, so this state is too. */
static atomic_bool heard, agreed, together;
static _Atomic int64_t heard_ns;

static void on_signal(int number)
{
    (void)number;
    atomic_store(&heard_ns, clock_ns()); /* clock_gettime may be called here */
    atomic_store(&heard, true);
}

void stop_listen(void)
{
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGINT, &a, NULL);
}

bool stop_heard(void)
{
    return atomic_load(&heard);
}

bool stop_asked(void)
{
    return atomic_load(&together) ? atomic_load(&agreed) : stop_heard();
}

int64_t stop_asked_ns(void)
{
    return atomic_load(&heard_ns);
}

void stop_together(void)
{
    atomic_store(&together, true);
}

void stop_agree(void)
{
    if (atomic_load(&heard_ns) == 0)
        atomic_store(&heard_ns, clock_ns());
    atomic_store(&agreed, true);
}
