/* supervisors.c: the remote processes that start workers again (prepd/worker/supervisor.h). The
 * daemon keeps a list of them so that it can tell them to leave when it is drained for good.
 * Telling their workers would not be enough, since a worker may be between two lives just then, or
 * may never have come so far as to join. */
#include <stdlib.h>
#include <string.h>

#include "prepd/serve/core/dispatch_state.h"

/* A supervisor says every second that it is there. After this much silence it counts as gone;
 * ZeroMQ reports nothing. */
static const int64_t SILENT_NS = 10000000000;

void supervisors_tick(dispatch *state, int64_t now)
{
    for (supervisor_seat **at = &state->supervisors; *at;) {
        supervisor_seat *seat = *at;
        if (now - seat->heard_ns < SILENT_NS) {
            at = &seat->next;
            continue;
        }
        *at = seat->next;
        state->n_supervisors--;
        free(seat);
    }
}

status supervisor_heard(dispatch *state, const wire_peer *from, const char *name)
{
    const int64_t now = state->now_ns;
    for (supervisor_seat *seat_new = state->supervisors; seat_new; seat_new = seat_new->next)
        if (seat_new->peer.size == from->size &&
            memcmp(seat_new->peer.id, from->id, from->size) == 0) {
            seat_new->heard_ns = now;
            return ST_OK;
        }
    if (state->n_supervisors >= MAX_SEATS)
        return FAIL_IN(ST_UNAVAILABLE, name, "%d supervisors of workers are here already",
                       MAX_SEATS);
    supervisor_seat *newest = calloc(1, sizeof *newest);
    if (!newest)
        return FAIL(ST_NO_MEMORY, "no memory for a supervisor of workers");
    *newest = (supervisor_seat){.peer = *from, .heard_ns = now, .next = state->supervisors};
    state->supervisors = newest;
    state->n_supervisors++;
    return ST_OK;
}

void supervisors_leave(dispatch *state, bool tell)
{
    while (state->supervisors) {
        supervisor_seat *seat = state->supervisors;
        if (tell && outside_send_json(&state->outside, DOOR_WORKERS, &seat->peer, KIND_BYE, 0, "{}",
                                      2) != ST_OK)
            outside_debug(&state->outside, "a supervisor could not be told to leave: %s",
                          status_text());
        state->supervisors = seat->next;
        free(seat);
    }
    state->n_supervisors = 0;
}
