/* peer_limits.c: reads messages within the limits of a turn, and keeps count of refusals. */
#include "prepd/serve/peer_limits.h"

#include <string.h>

#include "common/base/clock.h"
#include "common/program/log.h"

enum {
    MESSAGES_PER_TURN = 256, /* messages of one socket before the others have their turn */
    MESSAGES_MS = 25,        /* time for them, which matters if they are large */
    DISCARDED_PER_TURN = 16384,
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

void peer_limits_offence(peer_limits *limits)
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
        log_warn("a connection is no longer listened to: %d of its messages were refused",
                 OFFENCES);
}

void peer_limits_refuse(peer_limits *limits, wire_socket *socket, const wire_peer *to,
                        const char *what, status st)
{
    limits->refused++;
    peer_limits_offence(limits);
    if (limits->told++ < REFUSALS_TOLD)
        log_warn("%s refused: %s", what, status_text());
    if (wire_send_error(socket, to, 0, st) != ST_OK)
        log_debug("%s could not be told: %s", what, status_text());
}

status peer_limits_read(peer_limits *limits, wire_socket *socket, peer_limits_handle handle,
                        void *user)
{
    wire_msg *message = NULL;
    status st = ST_OK;
    TRY(wire_msg_new(&message));
    const int64_t end_ns = clock_ns() + MESSAGES_MS * 1000000LL;
    for (int i = 0, discarded = 0; i < MESSAGES_PER_TURN && clock_ns() < end_ns; i++) {
        wire_peer from;
        wire_msg_clear(message);
        st = wire_recv(socket, 0, &from, message);
        const offender *peer =
            st == ST_OK || st == ST_PROTOCOL ? find_offender(limits, &from) : NULL;
        if (peer && peer->offences >= OFFENCES) {
            if (++discarded < DISCARDED_PER_TURN)
                i--;
            continue;
        }
        limits->reading = &from;
        if (st == ST_PROTOCOL) { /* the message exceeds the limits, which is the peer's fault */
            peer_limits_refuse(limits, socket, &from, "message", st);
            continue;
        }
        if (st != ST_OK)
            break;
        handle(user, &from, message);
    }
    limits->reading = NULL;
    wire_msg_free(&message);
    return st == ST_TIMEOUT || st == ST_PROTOCOL ? ST_OK : st;
}

void peer_limits_tell(peer_limits *limits, wire *net, wire_socket *const *sockets, int n_sockets)
{
    char text[WIRE_REFUSED_TEXT];
    for (int i = 0; i < n_sockets; i++) {
        const int64_t cut = wire_were_cut(sockets[i], text);
        if (cut > 0)
            log_warn("peer cut off times=%lld last=\"%s\"", (long long)cut, text);
        limits->refused += (uint64_t)cut;
    }
    const int64_t keys = wire_keys_were_refused(net, text);
    if (keys > 0)
        log_warn("key refused times=%lld last=\"%s\"", (long long)keys, text);
    limits->refused_keys += (uint64_t)keys;
    if (limits->told > REFUSALS_TOLD)
        log_warn("refused %lld more, not shown", (long long)(limits->told - REFUSALS_TOLD));
    limits->told = 0;
}
