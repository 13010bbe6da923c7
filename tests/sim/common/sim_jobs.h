/* SPDX-License-Identifier: Apache-2.0 */
/* sim_jobs.h: plays the schedules of a run, in this process or in several. */
#ifndef TESSERA_TESTS_SIM_COMMON_SIM_JOBS_H
#define TESSERA_TESTS_SIM_COMMON_SIM_JOBS_H

#include "tests/sim/common/sim_main.h"

typedef struct sim_request {
    const char *name; /* of the program, for the command that plays a seed again */
    uint64_t schedules, seed, jobs;
    double hours; /* 0: no end by time */
    bool trace, stop;
} sim_request;

/* What was played. */
typedef struct sim_tally {
    uint64_t schedules, events, violations;
    uint64_t hash; /* the sum of the schedules', so that their order does not matter */
} sim_tally;

/* Plays the schedule of a seed, adds it to the tally, and says so if it breaks something. */
void sim_play_one(const sim_request *asked, const sim_program *program, uint64_t seed,
                  sim_tally *tally);
/* Plays all schedules in asked->jobs processes of their own. A process that dies, or plays one
 * schedule for SIM_LONGEST_S, is a violation, and another goes on after it. */
enum { SIM_LONGEST_S = 900 };
sim_tally sim_jobs_play(const sim_request *asked, const sim_program *program);

#endif
