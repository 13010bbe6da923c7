/* supervisors.c: the remote processes that start workers again (prepd/worker/supervisor.h). The
 * daemon keeps a list of them so that it can tell them to leave when it is drained for good.
 * Telling their workers would not be enough, since a worker may be between two lives just then, or
 * may never have come so far as to join. */
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/program/log.h"
#include "prepd/serve/dispatch_state.h"

/* A supervisor says every second that it is there. After this much silence it counts as gone;
 * ZeroMQ reports nothing. */
static const int64_t SILENT_NS = 10000000000;

void supervisors_tick(dispatch *d, int64_t now)
{
    for (supervisor_seat **at = &d->supervisors; *at;) {
        supervisor_seat *k = *at;
        if (now - k->heard_ns < SILENT_NS) {
            at = &k->next;
            continue;
        }
        *at = k->next;
        d->n_supervisors--;
        free(k);
    }
}

status supervisor_heard(dispatch *d, const wire_peer *from, const char *name)
{
    const int64_t now = clock_ns();
    for (supervisor_seat *k = d->supervisors; k; k = k->next)
        if (k->peer.size == from->size && memcmp(k->peer.id, from->id, from->size) == 0) {
            k->heard_ns = now;
            return ST_OK;
        }
    if (d->n_supervisors >= MAX_SEATS)
        return FAIL_IN(ST_UNAVAILABLE, name, "%d supervisors of workers are here already",
                       MAX_SEATS);
    supervisor_seat *k = calloc(1, sizeof *k);
    if (!k)
        return FAIL(ST_NO_MEMORY, "no memory for a supervisor of workers");
    *k = (supervisor_seat){.peer = *from, .heard_ns = now, .next = d->supervisors};
    d->supervisors = k;
    d->n_supervisors++;
    return ST_OK;
}

void supervisors_leave(dispatch *d, bool tell)
{
    while (d->supervisors) {
        supervisor_seat *k = d->supervisors;
        if (tell && wire_send_json(d->workers, &k->peer, KIND_BYE, 0, "{}", 2) != ST_OK)
            log_debug("a supervisor could not be told to leave: %s", status_text());
        d->supervisors = k->next;
        free(k);
    }
    d->n_supervisors = 0;
}
