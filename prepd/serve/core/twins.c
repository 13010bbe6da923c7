/* twins.c: two consumers that say that they are the same rank of the same run. Both would get the
 * same rows, and the run would train on them twice.
 *
 * The second is refused while the first is there. A connection that was cut can look alive here for
 * some seconds, though; so a consumer that comes back under its own name takes the place of its
 * former connection, and goes on with the cursor that it brings. */
#include <string.h>

#include "prepd/serve/core/dispatch_state.h"

static consumer_seat *find_twin(const dispatch *state, const consumer_seat *newcomer)
{
    consumer_seat *other = newcomer->run[0] ? state->consumer_seats : NULL;
    while (other && (other->rank != newcomer->rank || strcmp(other->run, newcomer->run) != 0 ||
                     strcmp(other->stream, newcomer->stream) != 0))
        other = other->next;
    return other;
}

/* Says farewell to the former connection of a consumer, which hears it only if someone else uses
 * its name. That one must not come back in its turn, so it is not told that the daemon stops. */
static void tell_former(const dispatch *state, const consumer_seat *former)
{
    const status st = FAIL(ST_CONFIG,
                           "another connection in the name of this consumer (\"%s\" of run \"%s\") "
                           "has taken its place: every consumer needs a name of its own",
                           former->self, former->run);
    if (outside_send_error(&state->outside, DOOR_CONSUMERS, &former->peer, 0, st) != ST_OK)
        outside_debug(&state->outside, "consumer could not be told: %s", status_text());
}

status twin_make_room(dispatch *state, const consumer_seat *newcomer, const char *name)
{
    consumer_seat *twin = find_twin(state, newcomer);
    if (!twin)
        return ST_OK;
    const bool is_same = newcomer->self[0] && strcmp(twin->self, newcomer->self) == 0;
    if (!is_same && consumer_is_there(&state->outside, &twin->peer))
        return FAIL_IN(ST_CONFIG, name,
                       "another consumer reads stream %s as rank %d of run \"%s\", since %lld s: "
                       "two of them would get the same rows. End that one (if its machine has "
                       "died, try again in 15 s), connect this one as another rank, or give it a "
                       "run id of its own, with which it reads the stream by itself",
                       twin->stream, twin->rank, twin->run,
                       (long long)((state->now_ns - twin->started_ns) / 1000000000));
    if (is_same)
        tell_former(state, twin);
    outside_info(&state->outside, "consumer gone: %s",
                 is_same ? "it has come back on another connection" : "another takes its place");
    consumer_close(state, twin, NULL);
    return ST_OK;
}
