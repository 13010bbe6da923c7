/* SPDX-License-Identifier: Apache-2.0 */
/* door.h: reads what comes to a socket, no more at once than a turn of the loop has room for, so that
 * no peer keeps the others waiting. */
#ifndef TESSERA_PREPD_SERVE_DOOR_H
#define TESSERA_PREPD_SERVE_DOOR_H

#include "prepd/serve/core/state/outside.h"
#include "proto/wire/wire.h"

/* Who takes the messages: those that can be read, and those that break the limits. */
typedef struct door_handler {
    void (*take)(void *user, door at, const wire_peer *from, wire_msg *message);
    void (*refuse)(void *user, door at, const wire_peer *from, status st);
    void *user;
} door_handler;

/* Hands what has come to the socket to *to, and drops the messages of peers that `limits` ignores.
 * Fails as wire_recv does, but for a message that breaks the limits, which *to refuses. */
WARN_UNUSED status door_read(wire_socket *socket, door at, const peer_limits *limits,
                             const door_handler *to);

/* Logs and counts the peers that ZeroMQ's side refused on these sockets since the last call. */
void doors_log_refused(wire *net, wire_socket *const *sockets, int n_sockets, peer_limits *limits);

#endif
