/* SPDX-License-Identifier: Apache-2.0 */
/* trespassers.h: peers that ask for what their roles do not allow, and what they must not get. */
#ifndef TESSERA_TESTS_SIM_PREPD_TRESPASSERS_H
#define TESSERA_TESTS_SIM_PREPD_TRESPASSERS_H

#include "tests/sim/prepd/sim.h"

/* A stranger comes to the daemon, with roles of which none is the one that it needs. */
void trespass(sim_daemon *daemon);

/* What a daemon does for others. */
typedef struct obedience {
    int consumers, seats, supervisors, target;
    bool draining;
} obedience;

obedience obedience_of(const sim_daemon *daemon);
/* The core has just been given a trespasser's message: it has told it so and done nothing else. */
void check_is_turned_away(simulation *sim, const sim_daemon *daemon, const sim_link *link,
                          const obedience *before, int errors_before);
/* The core sends a message of this kind over a link. */
void check_is_meant_for(simulation *sim, const sim_link *link, frame_kind kind);
/* After every event: everyone whom the core knows may be what it is. */
void check_roles(simulation *sim, const dispatch *state);

#endif
