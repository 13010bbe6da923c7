/* SPDX-License-Identifier: Apache-2.0 */
/* wanted.h: how many local workers the operators of a daemon want. */
#ifndef TESSERA_TESTS_SIM_PREPD_WANTED_H
#define TESSERA_TESTS_SIM_PREPD_WANTED_H

#include "tests/sim/prepd/sim.h"

/* From now on the daemon wants as many as its options say, as it does when it starts. */
void wanted_by_options(sim_daemon *daemon, const conf *options);
/* What an operator says arrives. */
void operator_message_arrives(sim_daemon *to, const sim_link *link, wire_msg *message);
/* There are to be as many as are wanted. */
void check_wanted(simulation *sim, sim_daemon *daemon);
/* An operator sets another number of workers; now and then the most that there may be, and takes it
 * back at once. */
void scale_at_random(sim_daemon *daemon);

#endif
