/* SPDX-License-Identifier: Apache-2.0 */
/* network.h: connections in a simulated world. As over TCP, what one end sends arrives in order or
 * not at all, and the bound end is not told when a peer leaves: it finds that nothing can be sent.
 */
#ifndef TESSERA_TESTS_SIM_PREPD_NETWORK_H
#define TESSERA_TESTS_SIM_PREPD_NETWORK_H

#include "tests/sim/prepd/sim.h"

/* Connects someone to a daemon. -1 if it does not listen. */
int link_open(simulation *sim, end_kind kind, int who, int daemon, door at, int64_t latency_ns);
/* Sends to the daemon; takes the message. Nothing is told if it will not arrive. */
void link_send_up(simulation *sim, int link, wire_msg *message);
/* The same for a message of JSON. */
void link_say(simulation *sim, int link, int kind, uint64_t row, const char *json);
/* A worker says what no worker says, of which the invariants hear when it arrives. */
void link_breach(simulation *sim, int link, int kind, uint64_t row, const char *json);
/* A rank gives credit back, of which the invariants hear when it arrives. */
void link_give_back(simulation *sim, int link, int64_t bytes);
/* Sends to the far end, as outside.send. TIMEOUT only for rows and the end. */
WARN_UNUSED status link_send_down(simulation *sim, const sim_daemon *from, const wire_peer *to,
                                  frame_kind kind, wire_msg *message);
/* The far end closes the connection. What it sent before still arrives. */
void link_close(simulation *sim, int link);
/* The connection ends between the two: what is on its way is lost. Both ends learn of it, soon or,
 * if it only went silent, after as long as keepalive takes. */
void link_cut(simulation *sim, int link, bool silent);
/* Nothing arrives, in either direction, for this long. */
void link_stall(simulation *sim, int link, int64_t for_ns);
/* The daemon has gone, in good order (its last messages arrive) or not. */
void links_of_daemon_end(simulation *sim, const sim_daemon *gone, bool in_order);

/* How long the next message takes. */
int64_t link_delay(simulation *sim, const sim_link *link);

sim_link *link_of_peer(simulation *sim, const wire_peer *peer);
void link_event(simulation *sim, const sim_event *event); /* EVENT_UP, EVENT_DOWN, EVENT_ENDED */

#endif
