/* peer_limits.c: keeps count of refused messages. */
#include "prepd/serve/core/peer_limits.h"

#include <string.h>

enum {
    OFFENCES = 100, /* refused messages of a connection, after which all of them are discarded */
    REFUSALS_TOLD = 20, /* refusals logged between two calls of peer_limits_tell */
};

/* Finds the record of a connection whose messages were refused. ZeroMQ has no call to close a
 * connection from this side, so the messages of an offender are read and discarded instead. */
static offender *find_offender(peer_limits *limits, const wire_peer *peer)
{
    for (int i = 0; i < MAX_OFFENDERS; i++)
        if (limits->offenders[i].offences && limits->offenders[i].peer.size == peer->size &&
            memcmp(limits->offenders[i].peer.id, peer->id, peer->size) == 0)
            return &limits->offenders[i];
    return NULL;
}

void peer_limits_offence(peer_limits *limits, const outside *world)
{
    if (!limits->reading)
        return;
    offender *peer = find_offender(limits, limits->reading);
    if (!peer) {
        peer = &limits->offenders[limits->next_offender++ %
                                  MAX_OFFENDERS]; /* the oldest record makes way */
        *peer = (offender){.peer = *limits->reading};
    }
    if (++peer->offences == OFFENCES)
        outside_warn(world,
                     "a connection is no longer listened to: %d of its messages were refused",
                     OFFENCES);
}

void peer_limits_refuse(peer_limits *limits, const outside *world, door at, const wire_peer *to,
                        const char *what, status st)
{
    limits->refused++;
    limits->refused_builds += st == ST_MISMATCH;
    peer_limits_offence(limits, world);
    if (limits->told++ < REFUSALS_TOLD)
        outside_warn(world, "%s refused: %s", what, status_text());
    if (outside_send_error(world, at, to, 0, st) != ST_OK)
        outside_debug(world, "%s could not be told: %s", what, status_text());
}

bool peer_limits_ignores(const peer_limits *limits, const wire_peer *from)
{
    const offender *peer = find_offender((peer_limits *)limits, from);
    return peer && peer->offences >= OFFENCES;
}

void peer_limits_tell(peer_limits *limits, const outside *world)
{
    if (limits->told > REFUSALS_TOLD)
        outside_warn(world, "refused %lld more, not shown",
                     (long long)(limits->told - REFUSALS_TOLD));
    limits->told = 0;
}
