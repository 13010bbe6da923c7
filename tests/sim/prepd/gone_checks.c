/* SPDX-License-Identifier: Apache-2.0 */
/* gone_checks.c: whoever has gone is forgotten. */
#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/network.h"
#include "tests/sim/prepd/people.h"

/* More than the time after which an end that nobody told of is noticed. */
static const int64_t NOTICED_NS = 25000000000;

void check_gone(simulation *sim, sim_daemon *daemon)
{
    if (sim->rules.weight[FAULT_JUMP] > 0)
        return;
    for (const worker_seat *seat = daemon->state->seats; seat; seat = seat->next) {
        int number;
        const sim_worker *worker = worker_of_seat(sim, seat, &number);
        const sim_link *link = link_of_peer(sim, &seat->peer); /* gone after its last message */
        if (worker && worker->state == WORKER_GONE && link->gone_ns < sim->now_ns - NOTICED_NS)
            sim_break(sim, INV_MEMORY, "worker %d has gone long ago, and has a seat", number);
    }
    for (const consumer_seat *seat = daemon->state->consumer_seats; seat; seat = seat->next) {
        const sim_link *link = link_of_peer(sim, &seat->peer);
        if (link && link->gone_ns < sim->now_ns - NOTICED_NS)
            sim_break(sim, INV_MEMORY, "rank %d of %d has gone long ago, and has a seat",
                      seat->rank, seat->ranks);
    }
}
