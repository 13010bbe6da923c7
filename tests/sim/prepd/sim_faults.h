/* sim_faults.h: when something breaks, and what. */
#ifndef TESSERA_TESTS_SIM_PREPD_SIM_FAULTS_H
#define TESSERA_TESTS_SIM_PREPD_SIM_FAULTS_H

#include "tests/sim/prepd/sim.h"

/* Plans the first fault. */
void fault_plan(simulation *sim);
/* All jobs are done. True if nothing more is to be seen; otherwise the end goes on, by draining the
 * daemons. */
bool fault_end(simulation *sim);

/* fault_targets.c: breaks something at a worker, or a link. False if there is nothing to break. */
bool fault_worker(simulation *sim, sim_fault fault);
bool fault_link(simulation *sim, sim_fault fault);

#endif
