/* wire_guard.h: bounds the bytes that tcp peers of a bound socket have sent and no one has read
 * yet. Private to wire*.c.
 *
 * ZeroMQ's own bound, ZMQ_RCVHWM, is of no use here. It counts whole messages, and a message that
 * never ends is never whole. Worse, libzmq (4.3.4 and later) aborts the process ("!_io_error") if
 * it stopped reading a peer at that mark, the connection was cut, and a PING came after the
 * messages that wait. So ZeroMQ reads whatever comes. The kernel counts the bytes that came over a
 * connection (TCP_INFO), wire_recv counts those that became messages, and a peer whose difference
 * is over its limit is cut off. */
#ifndef TESSERA_PROTO_WIRE_GUARD_H
#define TESSERA_PROTO_WIRE_GUARD_H

#include "proto/wire.h"

typedef struct wire_guard wire_guard;

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
