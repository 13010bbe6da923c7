/* wire_socket.h: inside of wire.h: a socket and what is known of its connection. */
#ifndef TESSERA_PROTO_WIRE_SOCKET_H
#define TESSERA_PROTO_WIRE_SOCKET_H

#include "proto/endpoint.h"
#include "proto/wire.h"
#include "proto/wire_guard.h"
#include "proto/wire_keys.h"

struct wire {
    void *context;
    wire_keys *keys;          /* NULL: none */
    endpoint_folders folders; /* of long ipc paths; closed when ZeroMQ's thread has ended */
    uint64_t monitors;        /* made so far: a name each */
};

struct wire_socket {
    wire *wire; /* borrowed */
    void *socket;
    void *monitor;     /* DEALER: PAIR with the connection's events */
    wire_guard *guard; /* bound, tcp; else NULL */
    bool is_router;
    bool greeted;     /* the ZeroMQ handshake has succeeded once */
    bool lost;        /* and the connection has ended since: a new one would be a stranger there */
    int cut;          /* connections that ended in the middle of the handshake */
    bool expected;    /* which is no refusal: wire_expect */
    bool refused;     /* keys: the other side demands others, or ours are unknown to it */
    char *bound_path; /* ipc file to remove */
    char *name;       /* endpoint, for errors */
};

/* ZeroMQ's error as a failure: "making a socket for" NAME. */
WARN_UNUSED status wire_zmq_failed(const char *what, const char *name);
/* *out: a PAIR that gets these ZMQ_EVENTs of the socket. To be closed, also after a failure unless
 * NULL, behind zmq_socket_monitor(socket, NULL, 0). */
WARN_UNUSED status wire_monitor(wire *w, void *socket, const char *name, int events, void **out);
/* Reads what the monitor of a DEALER has to say, without waiting. */
void wire_read_events(wire_socket *s);

#endif
