/* gone_checks.c: whoever has gone is forgotten, and so is what was called for a reason that has
 * passed. */
#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/network.h"
#include "tests/sim/prepd/people.h"

/* More than the time after which an end that nobody told of is noticed. */
static const int64_t NOTICED_NS = 25000000000, THIRD_NS = 3000000000;

static bool wants_third(const lease *leased)
{
    return leased && (audit_wants_third(leased) || failure_wants_third(leased));
}

static bool is_third_wanted(const dispatch *state)
{
    for (const lease *lost = state->book.lost; lost; lost = lost->next)
        if (wants_third(lost))
            return true;
    for (const worker_seat *seat = state->seats; seat; seat = seat->next)
        if (wants_third(seat->work) || wants_third(seat->ahead))
            return true;
    return false;
}

static void check_third(simulation *sim, sim_daemon *daemon)
{
    if (!daemon->state->third_worker || is_third_wanted(daemon->state))
        daemon->third_ns = 0;
    else if (daemon->third_ns == 0)
        daemon->third_ns = sim->now_ns;
    else if (sim->now_ns - daemon->third_ns > THIRD_NS)
        sim_break(sim, INV_PROCESSES,
                  "the worker that was started to decide has nothing to decide");
}

void check_gone(simulation *sim, sim_daemon *daemon)
{
    check_third(sim, daemon);
    if (sim->rules.weight[FAULT_JUMP] > 0)
        return;
    for (const worker_seat *seat = daemon->state->seats; seat; seat = seat->next) {
        const int number = worker_find(sim, seat->pid);
        if (number >= 0 && sim->worker[number]->state == WORKER_GONE &&
            sim->now_ns - sim->worker[number]->gone_ns > NOTICED_NS)
            sim_break(sim, INV_MEMORY, "worker %d has gone long ago, and has a seat", number);
    }
    for (const consumer_seat *seat = daemon->state->consumer_seats; seat; seat = seat->next) {
        const sim_link *link = link_of_peer(sim, &seat->peer);
        if (link && link->gone_ns < sim->now_ns - NOTICED_NS)
            sim_break(sim, INV_MEMORY, "rank %d of %d has gone long ago, and has a seat",
                      seat->rank, seat->ranks);
    }
}
