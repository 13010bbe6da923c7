/* SPDX-License-Identifier: Apache-2.0 */
/* arrivals.h: what workers send reaches the core. */
#ifndef TESSERA_TESTS_SIM_PREPD_ARRIVALS_H
#define TESSERA_TESTS_SIM_PREPD_ARRIVALS_H

#include "tests/sim/prepd/sim.h"

/* As daemon_message, for a message of a worker. */
void worker_message_arrives(sim_daemon *to, const sim_link *link, wire_msg *message);

#endif
