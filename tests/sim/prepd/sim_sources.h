/* SPDX-License-Identifier: Apache-2.0 */
/* sim_sources.h: the sources of a simulated data set that is a mixture. */
#ifndef TESSERA_TESTS_SIM_PREPD_SIM_SOURCES_H
#define TESSERA_TESTS_SIM_PREPD_SIM_SOURCES_H

#include "tests/sim/prepd/sim_data.h"

/* Shares samples and pictures out among the sources, and sets the adapter and the digests. The
 * counts and the seed of the data set are known; its samples are not drawn yet. */
void sim_sources_init(sim_data *inout, const sim_data_rules *rules);

#endif
