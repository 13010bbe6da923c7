/* daemon_world.h: what the core of a simulated daemon may ask of the world around it. */
#ifndef TESSERA_TESTS_SIM_PREPD_DAEMON_WORLD_H
#define TESSERA_TESTS_SIM_PREPD_DAEMON_WORLD_H

#include "tests/sim/prepd/sim.h"

extern const char sim_build[];                 /* the build id of honest peers */
extern const char *const sim_prints[N_PRINTS]; /* their fingerprints */

/* The table of outside.h, filled with functions that put events into the simulated world. */
outside daemon_world(sim_daemon *daemon);

#endif
