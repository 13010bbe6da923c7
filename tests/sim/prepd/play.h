/* SPDX-License-Identifier: Apache-2.0 */
/* play.h: plays one schedule. */
#ifndef TESSERA_TESTS_SIM_PREPD_PLAY_H
#define TESSERA_TESTS_SIM_PREPD_PLAY_H

#include "tests/sim/common/sim_main.h"
#include "tests/sim/prepd/stats.h"

/* Plays the schedule of a seed and adds what it held to the stats. */
sim_played play_schedule(uint64_t seed, const sim_choice *choice, FILE *trace, sim_stats *stats);

#endif
