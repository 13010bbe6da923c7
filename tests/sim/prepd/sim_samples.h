/* SPDX-License-Identifier: Apache-2.0 */
/* sim_samples.h: the samples of a simulated data set. */
#ifndef TESSERA_TESTS_SIM_PREPD_SIM_SAMPLES_H
#define TESSERA_TESTS_SIM_PREPD_SIM_SAMPLES_H

#include "tests/sim/common/sim_random.h"
#include "tests/sim/prepd/sim_data.h"

/* Draws all of them, whose pictures and sources are there. */
void sim_samples_draw(sim_data *data, const sim_data_rules *rules, sim_random *luck);

#endif
