/* SPDX-License-Identifier: Apache-2.0 */
/* sim_twins.h: consumers that say that they are the same rank of a run. */
#ifndef TESSERA_TESTS_SIM_PREPD_SIM_TWINS_H
#define TESSERA_TESTS_SIM_PREPD_SIM_TWINS_H

#include "tests/sim/prepd/sim.h"

/* Writes into a rank's HELLO the name of its run, and its own. Nothing if its job gives none. */
void twin_put_names(const simulation *sim, const sim_rank *rank, json_writer *writer);

/* The fault: a rank whose place another one wants (-1: there is none); and that other one. */
int twin_pick(simulation *sim);
void twin_come(simulation *sim, int rank);
/* Its HELLO, or BYE, has arrived: hands it to the core, and looks at who has the place. */
void twin_arrives(simulation *sim, int link, wire_msg *message);

/* Whether these are the words with which a consumer is refused because another one is there. */
bool twin_is_told(const char *words);
/* The core refuses this link so: another one is there indeed. */
void check_twin_refusal(simulation *sim, const dispatch *state, const sim_link *refused);
/* No two consumers of a daemon are the same rank of a run. */
void check_twins(simulation *sim, const dispatch *state);

#endif
