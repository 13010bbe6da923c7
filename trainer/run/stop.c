/* SPDX-License-Identifier: Apache-2.0 */
/* stop.c: the signal handler sets flags and writes to an eventfd. A thread that reads it does what
 * a handler may not: it writes the log line, sleeps until the deadline, and then ends the process.
 */
#include "trainer/run/stop.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/program/log.h"
#include "common/base/proc.h"

/* Signals go to the process as a whole, so this state is global. */
static atomic_bool signalled, hung_up, agreed, together;
static _Atomic int64_t begun_ns; /* when the process began to stop; 0: it has not */
static int64_t given_ns;         /* from then to the deadline */
static bool logs_signal;
static int wake = -1; /* an eventfd, written once begun_ns is set */

/* Starts the deadline, once. Calls only what a signal handler may call. */
static void begin_to_stop(void)
{
    const uint64_t one = 1;
    int64_t none = 0;
    if (atomic_compare_exchange_strong(&begun_ns, &none, clock_ns()))
        (void)!write(wake, &one, sizeof one);
}

static void on_signal(int number)
{
    const int kept = errno;
    if (number == SIGHUP)
        atomic_store(&hung_up, true);
    atomic_store(&signalled, true);
    begin_to_stop();
    errno = kept;
}

/* The thread: logs that the run is stopping, and ends the process if it has not ended in time. */
static void *see_to_the_end(void *unused)
{
    uint64_t count;
    (void)unused;
    while (read(wake, &count, sizeof count) != (ssize_t)sizeof count) {
    }
    if (logs_signal && atomic_load(&signalled))
        log_info("stopping after the current step, within checkpoint.exit_deadline; %s",
                 atomic_load(&hung_up) ? "the terminal has hung up (SIGHUP)"
                                       : "the same signal again ends the run at once");
    const int64_t until = atomic_load(&begun_ns) + given_ns;
    for (int64_t left; (left = until - clock_ns()) > 0;)
        nanosleep(&(struct timespec){.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000},
                  NULL);
    log_error(
        "the run did not stop within checkpoint.exit_deadline and is given up; the last whole "
        "checkpoint remains");
    _exit(status_exit_code(ST_TIMEOUT));
}

status stop_listen(double deadline_s, bool logs)
{
    const struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    const struct sigaction hangup = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    pthread_t thread;
    given_ns = deadline_s > 0 ? (int64_t)(deadline_s * 1e9) : 1;
    logs_signal = logs;
    wake = eventfd(0, EFD_CLOEXEC);
    if (wake < 0)
        return FAIL(ST_OS, "cannot make an eventfd for checkpoint.exit_deadline: %s",
                    strerror(errno));
    const int failed = pthread_create(&thread, NULL, see_to_the_end, NULL);
    if (failed)
        return FAIL(ST_OS, "cannot start a thread for checkpoint.exit_deadline: %s",
                    strerror(failed));
    pthread_detach(thread);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    if (!proc_ignores(SIGHUP)) /* under nohup it is ignored, and must stay so */
        sigaction(SIGHUP, &hangup, NULL);
    return ST_OK;
}

void stop_by_deadline(void)
{
    begin_to_stop();
}

bool stop_signalled(void)
{
    return atomic_load(&signalled);
}

bool stop_asked(void)
{
    return atomic_load(&together) ? atomic_load(&agreed) : stop_signalled();
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
