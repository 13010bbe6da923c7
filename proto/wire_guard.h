/* wire_guard.h: inside of wire.h: what tcp peers of a bound socket sent and nobody has read yet,
 * bounded in bytes.
 *
 * ZeroMQ's own bound (ZMQ_RCVHWM) is not used, for two reasons: it counts whole messages, and a
 * message without an end never is one; and libzmq aborts its process ("!_io_error", 4.3.4 and
 * later) where it stopped reading a peer at that mark, the link was cut and a PING lay behind. So
 * ZeroMQ reads whatever comes, and who has more unread than its limit is cut off: the kernel counts
 * a connection's bytes (TCP_INFO), wire_recv says which of them became messages. */
#ifndef TESSERA_PROTO_WIRE_GUARD_H
#define TESSERA_PROTO_WIRE_GUARD_H

#include "proto/wire.h"

typedef struct wire_guard wire_guard;

enum { WIRE_GUARD_MS = 25 }; /* between two looks; a peer has so long to pass its limit */

/* Before zmq_bind of socket (borrowed; closed after the guard) to this port. */
WARN_UNUSED status wire_guard_new(wire *w, void *socket, const char *name, int port,
                                  const wire_limits *limits, bool curve, wire_guard **out);
void wire_guard_free(wire_guard **g);

/* What a part of this size takes on the link. */
int64_t wire_guard_framed(const wire_guard *g, int part_bytes);
/* A message whose parts took so many bytes was read; it came over this descriptor (ZMQ_SRCFD). */
void wire_guard_count(wire_guard *g, int fd, int64_t bytes);
/* Its limit is known_bytes from now on. */
void wire_guard_know(wire_guard *g, int fd);
/* Looks at all connections, if it is time, and cuts off those over their limits. */
void wire_guard_look(wire_guard *g);
int64_t wire_guard_were_cut(wire_guard *g, char out[WIRE_REFUSED_TEXT]);

#endif
