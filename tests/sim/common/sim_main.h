/* sim_main.h: the command line that simulators have in common.
 *
 *   PROGRAM --schedules N --seed S [--trace]
 *
 * Plays the schedules of the seeds S, S+1 .. S+N-1. A seed that breaks an invariant prints one line
 * with the command that plays it again in words. The last two lines are a hash of all events and
 *
 *   N schedules, M events, K violations */
#ifndef TESSERA_TESTS_SIM_COMMON_SIM_MAIN_H
#define TESSERA_TESTS_SIM_COMMON_SIM_MAIN_H

#include "tests/sim/common/sim_log.h"

/* What became of one schedule. */
typedef struct sim_played {
    uint64_t events;  /* that the cores were given */
    uint64_t hash;    /* of the schedule's log */
    char broken[512]; /* the first invariant that did not hold, in words; "": all held */
} sim_played;

/* Plays the schedule of a seed. trace: where its story goes; NULL: nowhere. */
typedef sim_played (*sim_play)(uint64_t seed, FILE *trace);

/* Returns the exit code of main: 0, 1 if an invariant was broken, 64 for a wrong command line. */
int sim_main(int argc, char **argv, sim_play play);

#endif
