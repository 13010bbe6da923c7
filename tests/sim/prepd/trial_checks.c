/* SPDX-License-Identifier: Apache-2.0 */
/* trial_checks.c: what a trial shows, and who has to go for what was refused. */
#include <string.h>

#include "tests/sim/prepd/blame.h"
#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/people.h"
#include "prepd/serve/core/rows/core_rows.h"
#include "prepd/serve/core/workers/core_workers.h"

trial trial_of(const worker_seat *seat)
{
    const lease *leased = seat ? seat->work : NULL;
    if (!leased || !leased->owner || leased->asking || leased->kind == LEASE_TEXTS ||
        lease_solo_item(leased) == LEASE_NO_ITEM)
        return (trial){0};
    return (trial){leased->number, lease_solo_item(leased)};
}

static const lease *find_lease(const dispatch *state, uint64_t number)
{
    for (const lease *lost = state->book.lost; lost; lost = lost->next)
        if (lost->number == number)
            return lost;
    for (const worker_seat *seat = state->seats; seat; seat = seat->next)
        if (seat->work && seat->work->number == number)
            return seat->work;
    return NULL;
}

/* Whether all that the item stands for is blank in the row, so that nothing of it is decoded. */
static bool is_blank(const lease *leased, int64_t item)
{
    const consumer_seat *consumer = leased->owner;
    int64_t id;
    for (int64_t place = 0; lease_next_hit(leased, item, &place, &id);)
        if (!blank_cause(consumer, id))
            return false;
    return true;
}

/* Whether the item ends every worker that has its files. */
static bool ends_workers(const simulation *sim, const lease *leased, int64_t item)
{
    const source *section = lease_source(leased);
    const sim_data *data = &sim->data[section == &section->of->eval];
    if (leased->kind == LEASE_IMAGES)
        return data->picture[item].fate == PICTURE_KILLS_HEADER;
    const sim_sample *own = &data->sample[lease_sample(item)];
    picture_fate first = PICTURE_FINE; /* the first that is not fine decides */
    for (int32_t i = 0; first < PICTURE_FAILS && i < own->n_shown; i++)
        first = sim_data_fate_at(&data->picture[own->shows[i]], sim->now_ns);
    return (first == PICTURE_KILLS || first == PICTURE_HANGS) && !is_blank(leased, item);
}

static bool is_doubted(const lease *leased, int64_t item)
{
    for (const failure *told = leased->failures; told; told = told->next)
        if (told->item == item)
            return true;
    return false;
}

void check_trial(simulation *sim, const sim_daemon *daemon, const trial *was)
{
    const lease *leased = was->lease ? find_lease(daemon->state, was->lease) : NULL;
    if (!leased || !leased->owner || lease_solo_item(leased) == was->item ||
        !lease_has(leased, was->item) || is_doubted(leased, was->item))
        return;
    if (ends_workers(sim, leased, was->item))
        sim_break(sim, INV_POISON,
                  "item %lld of lease %llu ends whoever looks at it, and counts as tried without "
                  "harm",
                  (long long)was->item, (unsigned long long)leased->number);
}
