/* rejoin.c: tries to enter the stream again until the daemon is back or time is up (rejoin.h). */
#include "trainer/input/rejoin.h"

#include <time.h>

#include "common/base/clock.h"
#include "common/program/log.h"

enum {
    LOOK_MS = 1000,
    NAP_MS = 200, /* between two tries: a daemon that starts or drains refuses at once */
};
static const int64_t TELL_NS = INT64_C(10) * 1000 * 1000 * 1000;

static double seconds_since(int64_t begin)
{
    return (double)(clock_ns() - begin) * 1e-9;
}

static status came_back(const char *endpoint, int64_t begin)
{
    log_warn("prepd at %s is back after %.1f s; its stream goes on after the last row", endpoint,
             seconds_since(begin));
    return ST_OK;
}

status rejoin_stream(client *consumer, const char *endpoint, const char *cursor, double patience_s)
{
    const status_note why = *status_last();
    const int64_t begin = clock_ns();
    int64_t told = begin;
    log_warn("prepd at %s is gone (%s); waiting for it for up to %g s (prepd.reconnect_timeout)",
             endpoint, why.message, patience_s);
    while (seconds_since(begin) < patience_s) {
        const double left_ms = (patience_s - seconds_since(begin)) * 1000.0;
        status st = client_rejoin(consumer, cursor, left_ms < LOOK_MS ? (int)left_ms + 1 : LOOK_MS);
        if (st == ST_OK)
            return came_back(endpoint, begin);
        if (st != ST_TIMEOUT && st != ST_UNAVAILABLE)
            return st;
        if (clock_ns() - told >= TELL_NS) {
            told = clock_ns();
            log_warn("still waiting for prepd at %s after %.0f s: %s", endpoint,
                     seconds_since(begin), status_text());
        }
        if (st == ST_UNAVAILABLE)
            nanosleep(&(struct timespec){.tv_nsec = NAP_MS * 1000000L}, NULL);
    }
    return FAIL(ST_UNAVAILABLE,
                "prepd at %s did not come back within %g s "
                "(prepd.reconnect_timeout): %s",
                endpoint, patience_s, why.message);
}
