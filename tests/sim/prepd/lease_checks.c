/* lease_checks.c: what must hold of every lease, wherever it is. */
#include "tests/sim/prepd/invariants.h"

/* A worker has a lease for as long as all of its items may take, one after another, and is not
 * given more time by what it says. */
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
    int64_t votes = 0;
    for (const failure *told = leased->failures; told; told = told->next)
        votes +=
            told->n_votes > FAILURE_VOTES ? leased->n_items * FAILURE_VOTES + 1 : told->n_votes;
    if (votes > leased->n_items * FAILURE_VOTES)
        sim_break(sim, INV_MEMORY, "lease %llu keeps too many words about its samples",
                  (unsigned long long)leased->number);
    for (int i = 0; leased->audit && i < AUDIT_TRIES; i++)
        if ((leased->audit->made[i] != NULL) != (i < leased->audit->count) ||
            leased->audit->count == AUDIT_TRIES)
            sim_break(sim, INV_MEMORY, "row %llu was made %d times and keeps other messages",
                      (unsigned long long)leased->row, leased->audit->count);
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
    if (!seat->work || seat->lost_ns || sim->rules.weight[FAULT_JUMP] > 0)
        return;
    if (state->now_ns - seat->leased_ns > (seat->work->n_items + 1) * item_ns + SLACK_NS)
        sim_break(sim, INV_GOES_ON, "pid %d has had one lease of %lld items for %lld s",
                  (int)seat->pid, (long long)seat->work->n_items,
                  (long long)((state->now_ns - seat->leased_ns) / SECOND));
}

void check_leases(simulation *sim, const dispatch *state)
{
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
