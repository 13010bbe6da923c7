/* SPDX-License-Identifier: Apache-2.0 */
/* blame.h: what counts against a piece of work and who has to go, as the world sees it. */
#ifndef TESSERA_TESTS_SIM_PREPD_BLAME_H
#define TESSERA_TESTS_SIM_PREPD_BLAME_H

#include "tests/sim/prepd/sim.h"

/* A worker ends: by its own doing it counts against the lease that it is at. */
void blame_note_end(simulation *sim, const sim_worker *worker);
/* No lease has more deaths counted against it than workers have died of it. */
void check_blame(simulation *sim, const sim_daemon *daemon);

/* The item that a worker tries alone when its answer arrives; lease 0: it tries none. */
typedef struct trial {
    uint64_t lease;
    int64_t item;
} trial;
trial trial_of(const worker_seat *seat);
/* The answer has counted: an item that ends whoever looks at it is not let off by it. */
void check_trial(simulation *sim, const sim_daemon *daemon, const trial *was);

#endif
