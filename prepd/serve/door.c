/* SPDX-License-Identifier: Apache-2.0 */
/* door.c: how many messages of a socket are read in a turn, and what ZeroMQ's side refused. */
#include "prepd/serve/door.h"

#include "common/base/clock.h"
#include "common/program/log.h"

enum {
    MESSAGES_PER_TURN = 256, /* messages of one socket before the others have their turn */
    MESSAGES_MS = 25,        /* time for them, which matters if they are large */
    DISCARDED_PER_TURN = 16384,
};

status door_read(wire_socket *socket, door at, const peer_limits *limits, const door_handler *to)
{
    wire_msg *message = NULL;
    status st = ST_OK;
    TRY(wire_msg_new(&message));
    const int64_t end_ns = clock_ns() + MESSAGES_MS * 1000000LL;
    for (int i = 0, discarded = 0; i < MESSAGES_PER_TURN && clock_ns() < end_ns; i++) {
        wire_peer from;
        wire_msg_clear(message);
        st = wire_recv(socket, 0, &from, message);
        if (st != ST_OK && st != ST_PROTOCOL)
            break;
        if (peer_limits_ignores(limits, &from)) {
            if (++discarded < DISCARDED_PER_TURN)
                i--;
            continue;
        }
        if (st == ST_PROTOCOL) /* the message exceeds the limits, which is the peer's fault */
            to->refuse(to->user, at, &from, st);
        else
            to->take(to->user, at, &from, message);
    }
    wire_msg_free(&message);
    return st == ST_TIMEOUT || st == ST_PROTOCOL ? ST_OK : st;
}

void doors_log_refused(wire *net, wire_socket *const *sockets, int n_sockets, peer_limits *limits)
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
}
