/* SPDX-License-Identifier: Apache-2.0 */
/* sim_main.h: the command line that simulators have in common.
 *
 *   PROGRAM --schedules N --seed S [--hours H] [--jobs J] [--stop] [--trace]
 *
 * Plays the schedules of the seeds S, S+1 .. S+N-1, in J processes. With --hours it begins none
 * once that time is over, and without --schedules there is no other end. A seed that breaks an
 * invariant, that ends its process or that does not come to an end prints one line with the command
 * that plays it again in words; with --stop it is the last one. A run of more than a minute says on
 * stderr how far it is. The last two lines are a hash of all events, the same for any J, and
 *
 *   N schedules, M events, K violations */
#ifndef TESSERA_TESTS_SIM_COMMON_SIM_MAIN_H
#define TESSERA_TESTS_SIM_COMMON_SIM_MAIN_H

#include <stdbool.h>

#include "tests/sim/common/sim_log.h"

/* What became of one schedule. */
typedef struct sim_played {
    uint64_t events;  /* that the cores were given */
    uint64_t hash;    /* of the schedule's log */
    char broken[512]; /* the first invariant that did not hold, in words; "": all held */
} sim_played;

/* Plays the schedule of a seed. trace: where its story goes; NULL: nowhere. */
typedef sim_played (*sim_play)(uint64_t seed, FILE *trace);

/* A simulator. */
typedef struct sim_program {
    sim_play play;
    uint64_t *counters; /* [n_counters] to which `play` adds; all processes' are summed up in it */
    size_t n_counters;
    const char *words; /* of the command line that the story of a seed needs as well; NULL: none */
} sim_program;

/* Returns the exit code of main: 0, 1 if an invariant was broken, 64 for a wrong command line. */
int sim_main(int argc, char **argv, sim_play play);
/* The same for a simulator that counts what it plays. */
int sim_main_counting(int argc, char **argv, const sim_program *program);

#endif
