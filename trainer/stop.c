#include "trainer/stop.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"

/* Signals are of the process, so this state is too. */
static atomic_bool heard, agreed, together;
static _Atomic int64_t heard_ns;
static timer_t deadline;
static struct timespec given;
static bool tells;

/* From here on the process has so long. What may be called in a signal's handler is. */
static void begin_to_stop(void)
{
    struct itimerspec until = {.it_value = given};
    int64_t none = 0;
    if (atomic_compare_exchange_strong(&heard_ns, &none, clock_ns()))
        timer_settime(deadline, 0, &until, NULL);
}

static void on_signal(int number)
{
    static const char words[] =
        "trainer: level=info msg=\"stopping behind the step under way, within "
        "checkpoint.exit_deadline; the same signal again ends it at once\"\n";
    (void)number;
    if (tells && !atomic_load(&heard))
        (void)!write(STDERR_FILENO, words, sizeof words - 1);
    begin_to_stop();
    atomic_store(&heard, true);
}

static void on_deadline(int number)
{
    static const char words[] =
        "trainer: level=error msg=\"not done within checkpoint.exit_deadline; "
        "given up, the last whole checkpoint stands\"\n";
    (void)number;
    (void)!write(STDERR_FILENO, words, sizeof words - 1);
    _exit(status_exit_code(ST_TIMEOUT));
}

status stop_listen(double deadline_s, bool tells_)
{
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    struct sigaction late = {.sa_handler = on_deadline};
    struct sigevent tell = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
    const int64_t ns = deadline_s > 0 ? (int64_t)(deadline_s * 1e9) : 1;
    tells = tells_;
    given = (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    if (timer_create(CLOCK_MONOTONIC, &tell, &deadline) != 0)
        return FAIL(ST_OS, "no timer for checkpoint.exit_deadline: %s", strerror(errno));
    sigaction(SIGALRM, &late, NULL);
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGINT, &a, NULL);
    return ST_OK;
}

void stop_by_deadline(void)
{
    begin_to_stop();
}

bool stop_heard(void)
{
    return atomic_load(&heard);
}

bool stop_asked(void)
{
    return atomic_load(&together) ? atomic_load(&agreed) : stop_heard();
}

void stop_together(void)
{
    atomic_store(&together, true);
}

void stop_agree(void)
{
    begin_to_stop();
    atomic_store(&agreed, true);
}
