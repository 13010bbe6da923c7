/* SPDX-License-Identifier: Apache-2.0 */
/* blame_checks.c: only workers that end by their own doing count against what they had in work.
 * Whoever is killed from outside, is dismissed, leaves or loses its connection does not. */
#include "tests/sim/prepd/blame.h"
#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/people.h"

/* The deaths that may count against a lease; NULL if there is no room for more. */
static sim_blame *blame_of(simulation *sim, const sim_daemon *daemon, uint64_t lease_number)
{
    for (int i = sim->n_blames - 1; i >= 0; i--)
        if (sim->blame[i].daemon == daemon->number && sim->blame[i].life == daemon->incarnation &&
            sim->blame[i].lease == lease_number)
            return &sim->blame[i];
    if (sim->n_blames == MOST_BLAMES)
        return NULL;
    sim->blame[sim->n_blames] = (sim_blame){daemon->number, daemon->incarnation, lease_number, 0};
    return &sim->blame[sim->n_blames++];
}

static void add_end(simulation *sim, const sim_daemon *daemon, uint64_t lease_number)
{
    sim_blame *counted = lease_number ? blame_of(sim, daemon, lease_number) : NULL;
    if (counted)
        counted->ends++;
}

void blame_note_end(simulation *sim, const sim_worker *worker)
{
    const child_end *end = &worker->end;
    if (!worker_decides(sim, worker))
        return;
    const bool left = end->how == PROC_END_LEFT && worker->local && !worker->leaving &&
                      end->code != PROC_EXIT_AGAIN; /* local ones have no reason to */
    /* Of a trusted worker on another machine nobody says how it ended. */
    if (worker->local && end->how != PROC_END_CRASH && end->how != PROC_END_TIME && !left)
        return;
    const sim_daemon *daemon = &sim->daemon[worker->daemon];
    add_end(sim, daemon, worker->job.number);
    /* What it said last may not have come: then the daemon takes it for being at the one before. */
    if (worker->job_before != worker->job.number)
        add_end(sim, daemon, worker->job_before);
}

static void check_lease_blame(simulation *sim, const sim_daemon *daemon, const lease *leased)
{
    if (!leased || (leased->losses == 0 && leased->solo_deaths == 0 && leased->rounds == 0))
        return;
    const int counts = leased->rounds * LEASE_MAX_LOSSES + leased->losses + leased->solo_deaths;
    const sim_blame *known = blame_of(sim, daemon, leased->number);
    /* A worker that cannot read a file, as the daemon cannot, counts as one that died of it. */
    if (known && counts > known->ends + daemon->was_blind + daemon->cut_deciders)
        sim_break(sim, INV_HEALTHY,
                  "%d deaths count against lease %llu, and %d workers have died at it", counts,
                  (unsigned long long)leased->number, known->ends);
}

void check_blame(simulation *sim, const sim_daemon *daemon)
{
    for (const lease *lost = daemon->state->book.lost; lost; lost = lost->next)
        check_lease_blame(sim, daemon, lost);
    for (const worker_seat *seat = daemon->state->seats; seat; seat = seat->next) {
        check_lease_blame(sim, daemon, seat->work);
        check_lease_blame(sim, daemon, seat->ahead);
    }
}
