/* SPDX-License-Identifier: Apache-2.0 */
/* end_checks.c: how daemons may end, and by when a schedule must be over. */
#include "tests/sim/prepd/invariants.h"

void check_end(simulation *sim, const sim_daemon *daemon)
{
    static const status why[] = {[HOPELESS_WORKERS_SAY] = ST_NO_INPUT,
                                 [HOPELESS_WORKERS_DIFFER] = ST_MISMATCH,
                                 [HOPELESS_WORKERS_DIE] = ST_UNAVAILABLE,
                                 [HOPELESS_PRINTS_DIE] = ST_UNAVAILABLE,
                                 [HOPELESS_PRINTS_SAY] = ST_NO_INPUT};
    if (sim->rules.hopeless) {
        sim->over = daemon->state->outcome != ST_OK;
        if (sim->over && daemon->state->outcome != why[sim->rules.hopeless])
            sim_break(sim, INV_GIVES_UP,
                      "a daemon for which nothing can work names another cause: %s",
                      daemon->state->cause.message);
        if (!sim->over)
            sim_break(sim, INV_GIVES_UP,
                      "a daemon for which nothing can work ends as if all were well");
        return;
    }
    if (daemon->state->outcome == ST_NO_MEMORY && daemon->ran_short)
        return;
    if (daemon->state->outcome != ST_OK)
        sim_break(sim, INV_GOES_ON, "daemon %d fails: %s", daemon->number,
                  daemon->state->cause.message);
}

void check_union(simulation *sim, const sim_rank *rank)
{
    sim_stream_job *job = &sim->job[rank->job];
    if (--job->n_reading > 0 || !job->taken)
        return;
    for (uint64_t row = 0; row < job->rows->n_rows; row++)
        if (job->taken[row] != 1) {
            sim_break(sim, INV_ORDER,
                      "all ranks have come to the end, and nobody has taken row %llu",
                      (unsigned long long)row);
            return;
        }
}

void check_deadline(simulation *sim)
{
    if (sim->rules.hopeless)
        sim_break(sim, INV_GIVES_UP, "a daemon for which nothing can work does not give up");
    for (int i = 0; i < sim->n_ranks; i++) {
        const sim_rank *rank = sim->rank[i];
        if (rank->state == RANK_ENDED || rank->state == RANK_GONE)
            continue;
        sim_break(sim, INV_GOES_ON,
                  "nothing goes on: rank %d of job %d is %s and waits for row %llu", i, rank->job,
                  rank->state == RANK_AWAY       ? "away"
                  : rank->state == RANK_GREETING ? "not welcomed"
                                                 : "welcomed",
                  (unsigned long long)rank->next);
    }
    sim_break(sim, INV_GOES_ON, "the schedule does not end");
}
