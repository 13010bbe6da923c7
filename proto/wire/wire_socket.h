/* SPDX-License-Identifier: Apache-2.0 */
/* wire_socket.h: the representation of a socket and its context. Private to wire*.c. */
#ifndef TESSERA_PROTO_WIRE_SOCKET_H
#define TESSERA_PROTO_WIRE_SOCKET_H

#include "proto/wire/endpoint.h"
#include "proto/wire/wire.h"
#include "proto/wire/wire_keys.h"

typedef struct wire_guard wire_guard;

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

/* --- wire_guard.c: bounds the bytes that tcp peers of a bound socket have sent and no one has read
 * yet ---
 *
 * ZeroMQ's own bound, ZMQ_RCVHWM, is of no use here. It counts whole messages, and a message that
 * never ends is never whole. Worse, libzmq (4.3.4 and later) aborts the process ("!_io_error") if
 * it stopped reading a peer at that mark, the connection was cut, and a PING came after the
 * messages that wait. So ZeroMQ reads whatever comes. The kernel counts the bytes that came over a
 * connection (TCP_INFO), wire_recv counts those that became messages, and a peer whose difference
 * is over its limit is cut off. */

/* Milliseconds between two looks. A peer may pass its limit for that long. */
enum { WIRE_GUARD_MS = 25 };

/* Call it before `socket` is bound to this port. The socket is borrowed and must be closed after
 * the guard. name is for errors; curve says whether parts are encrypted, which makes them longer.
 */
WARN_UNUSED status wire_guard_new(wire *context, void *socket, const char *name, int port,
                                  const wire_limits *limits, bool curve, wire_guard **out);
void wire_guard_free(wire_guard **guard);

/* Bytes that a part of this size takes on the connection. */
int64_t wire_guard_framed(const wire_guard *guard, int part_bytes);
/* A message was read whose parts took this many bytes; it came over descriptor fd (ZMQ_SRCFD). */
void wire_guard_count(wire_guard *guard, int fd, int64_t bytes);
/* Gives that connection the limit known_bytes from now on. */
void wire_guard_know(wire_guard *guard, int fd);
/* If it is time: looks at all connections and cuts off those over their limits. */
void wire_guard_look(wire_guard *guard);
/* wire_were_cut. */
int64_t wire_guard_were_cut(wire_guard *guard, char out[WIRE_REFUSED_TEXT]);

#endif
