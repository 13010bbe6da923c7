/* wire_socket.h: the representation of a socket and its context. Private to wire*.c. */
#ifndef TESSERA_PROTO_WIRE_SOCKET_H
#define TESSERA_PROTO_WIRE_SOCKET_H

#include "proto/endpoint.h"
#include "proto/wire.h"
#include "proto/wire_guard.h"
#include "proto/wire_keys.h"

struct wire {
    void *context;
    wire_keys *keys;          /* NULL if there are none */
    endpoint_folders folders; /* of long ipc paths; closed after ZeroMQ's threads have ended */
    uint64_t monitors;        /* monitors made so far; each gets a name of its own */
};

struct wire_socket {
    wire *wire; /* borrowed */
    void *socket;
    void *monitor;     /* DEALER: a PAIR socket that delivers the connection's events */
    wire_guard *guard; /* bound tcp socket with limits; NULL for any other */
    bool is_router;
    bool is_ipc;
    int64_t user;  /* who runs this process; over ipc, that user's own processes may command it */
    bool greeted;  /* the ZeroMQ handshake has succeeded once */
    bool lost;     /* and the connection has ended since; a new one would be a stranger there */
    int cut;       /* connections that ended within the handshake */
    bool expected; /* wire_expect: such an end is no refusal */
    bool refused;  /* the other side demands keys that we do not have, or does not know ours */
    char *bound_path; /* ipc file to remove */
    char *name;       /* endpoint, for errors */
};

/* Notes ZeroMQ's last error as a failure with ST_OS: "WHAT NAME: error text". */
WARN_UNUSED status wire_zmq_failed(const char *what, const char *name);
/* Makes *out a PAIR socket that delivers these ZMQ_EVENTs of `socket`. The caller first ends the
 * monitor by zmq_socket_monitor(socket, NULL, 0), then closes *out; it does so after a failure too,
 * unless *out is NULL. */
WARN_UNUSED status wire_monitor(wire *context, void *socket, const char *name, int events,
                                void **out);
/* Reads the events of a DEALER's monitor, without waiting, into the socket's fields. */
void wire_read_events(wire_socket *socket);

#endif
