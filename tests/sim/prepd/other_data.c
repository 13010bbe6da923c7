/* SPDX-License-Identifier: Apache-2.0 */
/* other_data.c: files have appeared, and the index has been made again with them. What ranks had of
 * the stream before, a cursor or a list of bad samples, must not go on with another one. Then the
 * schedule is over. */
#include <string.h>

#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/jobs.h"

static bool has_other_data(const simulation *sim, const sim_rank *rank)
{
    return sim->other_data[strcmp(sim->job[rank->job].stream, "eval") == 0];
}

static void end_here(simulation *sim)
{
    sim->stats->other_data++;
    sim->over = true;
}

bool check_welcome_to_other(simulation *sim, int who)
{
    const sim_rank *rank = sim->rank[who];
    if (!has_other_data(sim, rank))
        return false;
    if (rank->brings != CURSOR_NONE)
        sim_break(sim, INV_CURSORS,
                  "rank %d is welcomed with a cursor of data that have changed since", who);
    end_here(sim); /* it has another stream than its job had before */
    return true;
}

bool check_other_data(simulation *sim, int who, status why)
{
    const sim_rank *rank = sim->rank[who];
    const bool list = strstr(status_text(), "the quarantine of ") != NULL;
    if (!has_other_data(sim, rank) || (rank->brings == CURSOR_NONE && !list) || why != ST_CONFIG)
        return false;
    if (!strstr(status_text(), "files or options have changed"))
        sim_break(sim, INV_CURSORS,
                  "rank %d comes with a cursor of data that have changed, and is told: %s", who,
                  status_text());
    end_here(sim);
    return true;
}
