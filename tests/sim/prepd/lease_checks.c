/* SPDX-License-Identifier: Apache-2.0 */
/* lease_checks.c: what must hold of every lease, wherever it is. */
#include "tests/sim/prepd/invariants.h"
#include "prepd/serve/core/workers/core_workers.h"

/* A worker has a lease for as long as all of its items may take, one after another, and is not
 * given more time by what it says. */
enum { MOST_COMPARED = 2 }; /* rows of others, each of which gives it time as an item does */
static const double PATIENCE = 1.25;
static const int64_t PATIENCE_NS = 500000000, SLACK_NS = 1000000000;

static bool is_there(const dispatch *state, const lease *leased)
{
    const consumer_seat *owner = state->consumer_seats;
    while (owner && owner != leased->owner)
        owner = owner->next;
    return owner != NULL;
}

static void check_tries(simulation *sim, const dispatch *state, const lease *leased)
{
    if (!leased->solo && leased->n_items > 0 && leased->losses >= LEASE_MAX_LOSSES)
        sim_break(sim, INV_POISON,
                  "lease %llu has cost %d workers, and its items are not tried alone",
                  (unsigned long long)leased->number, leased->losses);
    if (leased->solo_deaths >= state->book.solo_limit)
        sim_break(sim, INV_POISON, "an item has killed %d workers alone, and is still in work",
                  leased->solo_deaths);
}

static void check_lease(simulation *sim, const dispatch *state, const lease *leased)
{
    if (leased->kind == LEASE_ROW && leased->owner && !is_there(state, leased))
        sim_break(sim, INV_LEASES, "row %llu is made for a consumer that has gone",
                  (unsigned long long)leased->row);
    check_tries(sim, state, leased);
    int64_t told = 0;
    for (const failure *one = leased->failures; one; one = one->next)
        told++;
    if (told > leased->n_items)
        sim_break(sim, INV_MEMORY, "lease %llu keeps too many words about its samples",
                  (unsigned long long)leased->number);
}

/* A worker has the whole of a row only if nobody has said of a sample that it is bad, or all is
 * decided. */
static void check_whole(simulation *sim, const lease *leased)
{
    if (leased && leased->failures && lease_solo_item(leased) == LEASE_NO_ITEM)
        sim_break(sim, INV_DEVIANT,
                  "row %llu is made again before it is decided whether sample %lld is bad",
                  (unsigned long long)leased->row, (long long)lease_sample(leased->failures->item));
}

static void check_time(simulation *sim, const dispatch *state, const worker_seat *seat)
{
    const int64_t item_ns =
        (int64_t)(state->options->prepd_sample_timeout * PATIENCE * 1e9) + PATIENCE_NS;
    if (!seat->work || seat->late || sim->rules.weight[FAULT_JUMP] > 0)
        return;
    if (state->now_ns - seat->leased_ns >
        (seat->work->n_items + 1 + MOST_COMPARED) * item_ns + SLACK_NS)
        sim_break(sim, INV_GOES_ON, "pid %d has had one lease of %lld items for %lld s",
                  (int)seat->pid, (long long)seat->work->n_items,
                  (long long)((state->now_ns - seat->leased_ns) / SECOND));
}

static bool any_idle(const dispatch *state)
{
    for (const worker_seat *seat = state->seats; seat; seat = seat->next)
        if (seat->local && seat_can_work(seat) && !seat->work && !seat->owes)
            return true;
    return false;
}

static bool any_late(const dispatch *state)
{
    static const int64_t TAKEN_NS = 3000000000, BYTE_NS = 1000;
    for (const worker_seat *seat = state->seats; seat; seat = seat->next)
        if (!seat->decider && seat->work && seat->work->owner &&
            state->now_ns - seat->since_ns > TAKEN_NS + seat->shipped * BYTE_NS)
            return true;
    return false;
}

/* What another machine shows no sign of is made here, if somebody is idle. */
static void check_taken(simulation *sim, const dispatch *state)
{
    sim_daemon *daemon = state->outside.shell;
    if (!any_late(state) || !any_idle(state) || state->stopping ||
        sim->rules.weight[FAULT_JUMP] > 0)
        daemon->taken_ns = sim->now_ns;
    if (sim->now_ns - daemon->taken_ns > SLACK_NS)
        sim_break(sim, INV_GOES_ON,
                  "another machine makes no sign of a row, and a local worker is idle");
}

void check_leases(simulation *sim, const dispatch *state)
{
    check_taken(sim, state);
    for (const lease *lost = state->book.lost; lost; lost = lost->next) {
        if (!lost->owner)
            sim_break(sim, INV_LEASES, "a lease waits that nobody wants");
        check_lease(sim, state, lost);
    }
    for (const worker_seat *seat = state->seats; seat; seat = seat->next) {
        if (seat->work)
            check_lease(sim, state, seat->work);
        if (seat->ahead)
            check_lease(sim, state, seat->ahead);
        check_whole(sim, seat->work);
        check_whole(sim, seat->ahead);
        check_time(sim, state, seat);
    }
}
