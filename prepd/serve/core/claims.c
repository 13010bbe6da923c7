/* claims.c: decides whether an index record that a worker sent is used.
 *
 * What a remote worker says is a claim. It counts once another worker says the same, on another
 * machine if there is one. If two claims differ, a local worker decides, and a worker that said
 * something else is dismissed. What a local worker says counts at once, and so does what the only
 * worker says, since there is no other to ask.
 *
 * A claim travels with a lease of the same items (lease.h), so a worker that dies or leaves while
 * it confirms one changes nothing. */
#include <string.h>
#include <sys/types.h>

#include "prepd/serve/core/dispatch_state.h"

static const int64_t LOADING_NS = 60000000000; /* time from JOIN to all fingerprints, at most */

/* Whether `other` can confirm what was said on machine `host`: it is local, or on another one. */
static bool is_apart(const worker_seat *other, const char *host)
{
    return other->local || strcmp(other->host, host) != 0;
}

/* Whether to wait for `other` if a worker's record needs a second one. A worker that may get no
 * work is not waited for: one that has not sent its fingerprints within the time that loading
 * takes, or one that is held for breaches while this one is not (leasing.c). Such workers could
 * come for ever, and this one would wait as long. */
static bool is_waited_for(const dispatch *state, const worker_seat *other,
                          const worker_seat *worker)
{
    const int64_t now = state->now_ns;
    if (other->late)
        return false;
    if (other == worker || other->local)
        return other != worker;
    if (breach_is_held(&state->breaches, other->from, now) &&
        !breach_is_held(&state->breaches, worker->from, now))
        return false;
    return other->proved || (now - other->joined_ns < LOADING_NS &&
                             other->joined_ns - worker->joined_ns < LOADING_NS);
}

/* Whether local workers are still to come, or there. They are waited for: otherwise whoever joins
 * before them would be believed alone. */
static bool waits_for_locals(const dispatch *state)
{
    return state->local.target > 0 && local_is_expected(state);
}

/* Whether nobody else could say the same. */
static bool is_alone(const dispatch *state, const worker_seat *worker)
{
    const worker_seat *other = state->seats;
    if (waits_for_locals(state))
        return false;
    while (other && !is_waited_for(state, other, worker))
        other = other->next;
    return !other;
}

bool claim_may_take(const void *asker, const lease *leased)
{
    const dispatch *state = ((const claim_asker *)asker)->dispatch;
    const worker_seat *asking = ((const claim_asker *)asker)->worker;
    if (leased->n_claims == 0 || asking->local)
        return true;
    if (leased->n_claims > 1)
        return false;
    const lease_claim *claim = &leased->claim[0];
    if (is_apart(asking, claim->host))
        return true;
    if (waits_for_locals(state))
        return false; /* a local worker is asked instead, or will be once it has come */
    const worker_seat *told = seat_of_number(state, claim->by);
    if (asking == told)
        return is_alone(state, told);
    for (const worker_seat *other = state->seats; other; other = other->next)
        if (is_apart(other, claim->host) && is_waited_for(state, other, told ? told : asking))
            return false; /* that worker is asked instead */
    return true;
}

static void dismiss_claimant(dispatch *state, uint64_t number, const source *section,
                             lease_kind kind, int64_t item)
{
    worker_seat *worker = seat_of_number(state, number);
    if (!worker)
        return;
    const char *what = kind == LEASE_IMAGES
                           ? section->data->adapter->image_path(section->data, item)
                           : section->name;
    const status st = FAIL_IN(
        ST_PROTOCOL, what,
        "a remote worker (pid %d on %s) told a record of %s %lld for the index that differs "
        "from what another worker found: it is dismissed, and its record is not used",
        (int)worker->pid, worker->host, kind == LEASE_IMAGES ? "image" : "the text of sample",
        (long long)item);
    seat_tell_dismissal(state, worker, st);
    seat_dismiss(state, worker, "its record differs from what another worker found");
}

/* Where the item stands in the lease. */
static int64_t place_in(const lease *leased, int64_t item)
{
    int64_t k = 0;
    while (leased->item[k] != item)
        k++;
    return k;
}

/* Whether the worker's record counts. A local worker decides; of a remote one, another must say the
 * same. */
static bool counts(const dispatch *state, const lease *leased, int64_t item, uint64_t facts,
                   const worker_seat *worker)
{
    if (worker->local || (leased->n_claims == 0 && is_alone(state, worker)))
        return true;
    return leased->n_claims == 1 && leased->claim[0].facts[place_in(leased, item)] == facts;
}

/* Leases the items whose records do not count yet again, together with the claims made about them
 * so far and those of this worker. */
static status lease_again(dispatch *state, const lease *leased, const int64_t *item,
                          const uint64_t *facts, int64_t n_open, const worker_seat *worker)
{
    uint64_t *before;
    lease *again;
    TRY(arena_calloc(&state->scratch, (size_t)n_open + 1, sizeof(*before), (void **)&before));
    TRY(lease_new(&state->book, leased->kind, leased->owner, 0, item, n_open, &again));
    for (int64_t k = 0; leased->n_claims > 0 && k < n_open; k++)
        before[k] = leased->claim[0].facts[place_in(leased, item[k])];
    status st = leased->n_claims > 0
                    ? lease_add_claim(again, leased->claim[0].by, leased->claim[0].host, before)
                    : ST_OK;
    if (st == ST_OK)
        st = lease_add_claim(again, worker->number, worker->host, facts);
    if (st == ST_OK)
        lease_book_return(&state->book, again);
    else
        lease_free(&again);
    return st;
}

/* Dismisses the workers that said something else about a settled item. */
static void dismiss_deviants(dispatch *state, const lease *leased, int64_t item, uint64_t facts)
{
    for (int claim = 0; claim < leased->n_claims; claim++)
        if (leased->claim[claim].facts[place_in(leased, item)] != facts)
            dismiss_claimant(state, leased->claim[claim].by, leased->owner, leased->kind, item);
}

status claims_settle(dispatch *state, const lease *leased, const int64_t *item,
                     const uint64_t *facts, int64_t count, const worker_seat *worker,
                     const char *from, bool *out_settled)
{
    int64_t *open;
    uint64_t *open_facts;
    int64_t n_open = 0;
    arena_reset(&state->scratch);
    TRY(arena_calloc(&state->scratch, (size_t)count + 1, sizeof(*open), (void **)&open));
    TRY(arena_calloc(&state->scratch, (size_t)count + 1, sizeof(*open_facts),
                     (void **)&open_facts));
    for (int64_t k = 0; k < count; k++) {
        out_settled[k] = counts(state, leased, item[k], facts[k], worker);
        if (!out_settled[k] && leased->n_claims == 1 && leased->claim[0].by == worker->number)
            return FAIL_IN(ST_PROTOCOL, from, "the worker told two different records of item %lld",
                           (long long)item[k]);
        if (out_settled[k])
            continue;
        open[n_open] = item[k];
        open_facts[n_open++] = facts[k];
    }
    if (n_open > 0)
        TRY(lease_again(state, leased, open, open_facts, n_open, worker));
    for (int64_t k = 0; k < count; k++)
        if (out_settled[k])
            dismiss_deviants(state, leased, item[k], facts[k]);
    return ST_OK;
}

void claims_want_local(dispatch *state)
{
    const lease *leased = state->book.lost;
    while (leased && leased->n_claims < LEASE_MAX_CLAIMS)
        leased = leased->next;
    if (!leased || state->local.target > 0 || state->draining)
        return;
    outside_warn(
        &state->outside,
        "two remote workers tell different records of the same items for the index; a local "
        "worker is started to decide");
    local_scale(state, 1);
}
