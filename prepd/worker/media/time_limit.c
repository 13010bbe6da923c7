/* time_limit.c: the limit on one item as ticks of an interval timer, and the pauses before retries.
 */
#include "prepd/worker/media/time_limit.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

enum {
    TICKS = 8,        /* ticks in a limit; time spent stopped counts as one at most */
    WAITS = 4,        /* pauses in an item, each twice as long as the one before */
    WAIT_PARTS = 128, /* the first pause is 1 / 128 of the limit; all four are 15 / 128 */
};
static const double LONGEST_WAIT_S = 1.0;

/* A signal handler can only reach what is static. */
static volatile sig_atomic_t ticks_left;
static struct itimerval timer;
static double limit_s; /* 0 for none */
static int waits;      /* pauses in the item in work so far */

static void on_tick(int sig)
{
    if (--ticks_left > 0)
        return;
    signal(sig, SIG_DFL);
    raise(sig); /* delivered when this handler returns */
}

status time_limit_install(double seconds)
{
    limit_s = seconds;
    const struct sigaction tick = {.sa_handler = on_tick, .sa_flags = SA_RESTART};
    const double each = seconds / TICKS;
    const time_t whole = (time_t)each;
    timer.it_value = (struct timeval){whole, (suseconds_t)((each - (double)whole) * 1e6)};
    if (timer.it_value.tv_sec == 0 && timer.it_value.tv_usec == 0)
        timer.it_value.tv_usec = 1;
    timer.it_interval = timer.it_value;
    if (sigaction(SIGALRM, &tick, NULL) != 0)
        return FAIL(ST_OS, "cannot set a signal handler: %s", strerror(errno));
    return ST_OK;
}

void time_limit_start(void)
{
    ticks_left = TICKS;
    waits = 0;
    (void)setitimer(ITIMER_REAL, &timer, NULL); /* fails only for times out of range */
}

void time_limit_stop(void)
{
    const struct itimerval none = {0};
    (void)setitimer(ITIMER_REAL, &none, NULL);
}

bool time_limit_wait(void)
{
    if (limit_s <= 0 || waits == WAITS)
        return false;
    const double wanted = limit_s / WAIT_PARTS * (1 << waits++);
    const double seconds = wanted < LONGEST_WAIT_S ? wanted : LONGEST_WAIT_S;
    struct timespec left = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ; /* a tick interrupted it */
    return true;
}
