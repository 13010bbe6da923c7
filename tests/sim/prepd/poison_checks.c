/* SPDX-License-Identifier: Apache-2.0 */
/* poison_checks.c: what kills its workers is found within its limit of tries, as the world counts
 * them: LEASE_MAX_LOSSES workers die of an item with its lease, and once more as many if what they
 * had said last did not reach the daemon; then prepd.solo_deaths die of the item alone. Another
 * item that kills in the same lease may come in between, after which the lease is given whole
 * again. */
#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/people.h"
#include "prepd/serve/core/workers/core_workers.h"

static const worker_seat *seat_at(simulation *sim, const dispatch *state, const sim_worker *worker)
{
    const worker_seat *seat = state->seats;
    int number;
    while (seat && (worker_of_seat(sim, seat, &number) != worker || !seat->work ||
                    seat->work->number != worker->job.number || !seat->work->owner))
        seat = seat->next;
    return seat;
}

static sim_deaths *deaths_of(simulation *sim, const sim_deaths *key)
{
    for (int i = 0; i < sim->n_deaths; i++)
        if (sim->deaths[i].daemon == key->daemon && sim->deaths[i].life == key->life &&
            sim->deaths[i].lease == key->lease && sim->deaths[i].item == key->item)
            return &sim->deaths[i];
    if (sim->n_deaths == MOST_DEATHS)
        return NULL;
    sim->deaths[sim->n_deaths] = *key;
    return &sim->deaths[sim->n_deaths++];
}

/* Items of the lease that kill or fail, or will. */
static int count_bad(const simulation *sim, const lease *leased)
{
    const source *section = lease_source(leased);
    const sim_data *data = &sim->data[section == &section->of->eval];
    int count = 0;
    for (int64_t i = 0; i < leased->n_items; i++)
        count += leased->kind == LEASE_ROW
                     ? sim_data_is_bad(data, lease_sample(leased->item[i]), INT64_MAX)
                     : data->picture[leased->item[i]].fate == PICTURE_KILLS_HEADER;
    return count;
}

static bool any_lies_about_samples(const simulation *sim)
{
    for (int i = 0; i < sim->rules.n_supervisors; i++)
        if (sim->rules.bent[i] == BENT_LIES_FAILED)
            return true;
    return false;
}

void check_death(simulation *sim, const sim_daemon *daemon, const sim_worker *worker)
{
    const worker_seat *seat = seat_at(sim, daemon->state, worker);
    if (!seat || !worker->job.doom || worker->end.how == PROC_END_OUTSIDE ||
        worker->end.how == PROC_END_LEFT || worker->job.kind == LEASE_TEXTS)
        return;
    const int64_t solo = lease_solo_item(seat->work);
    const bool alone = solo != LEASE_NO_ITEM;
    const sim_deaths key = {.daemon = daemon->number,
                            .life = daemon->incarnation,
                            .lease = seat->work->number,
                            .item = alone ? solo : worker->job.item[worker->job.at - 1]};
    sim_deaths *counted = deaths_of(sim, &key);
    if (!counted)
        return;
    const int others = 2 * count_bad(sim, seat->work),
              limit = (int)sim->options.prepd_solo_deaths * (any_lies_about_samples(sim) ? 2 : 1);
    counted->alone += alone;
    counted->whole += !alone;
    /* A death whose picture the daemon could not ask the size of is not enough. */
    if (counted->alone > limit + daemon->was_blind ||
        counted->whole > 2 * LEASE_MAX_LOSSES + others)
        sim_break(
            sim, INV_POISON, "item %lld of lease %llu has killed %d workers alone and %d before",
            (long long)key.item, (unsigned long long)key.lease, counted->alone, counted->whole);
}
