/* sample_failures.c: a sample of which a worker says that it cannot be decoded.
 *
 * That is a claim. Another process tries the sample alone, on another host where there is one,
 * before the sample is quarantined. Where the two disagree a third decides, and the one that stands
 * alone is dismissed: a worker must not be able to take samples out of a training by its word. What
 * the only worker says counts at once, since there is no other to ask. Local workers that are still
 * to come are waited for: otherwise whoever is there without them would be believed alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prepd/serve/core/dispatch_state.h"

/* How many workers have said that the sample cannot be decoded. */
static int count_failed(const failure *told)
{
    int count = 0;
    for (int k = 0; k < told->n_votes; k++)
        count += told->failed[k];
    return count;
}

static bool has_voted(const failure *told, uint64_t number)
{
    bool voted = false;
    for (int k = 0; k < told->n_votes; k++)
        voted |= told->by[k] == number;
    return voted;
}

/* A worker that can be asked next; NULL if there is none. `apart`: on another host than the first.
 */
static const worker_seat *next_voter(const dispatch *state, const failure *told, bool apart)
{
    const worker_seat *other = state->seats;
    while (other && (!seat_can_work(state, other) || has_voted(told, other->number) ||
                     seat_lacks_file(other, &told->lacking) ||
                     (apart && strcmp(other->host, told->host) == 0)))
        other = other->next;
    return other;
}

/* Whether a local worker that has not voted is still to come. One that has voted and leaves, is
 * late, or has ended, is none of those that there are to be. Where the system starts none, none is.
 */
static bool is_local_to_come(const dispatch *state, const failure *told)
{
    int voted = 0;
    for (const worker_seat *worker = state->seats; worker; worker = worker->next)
        voted += worker->local && !worker->ended && !worker->late &&
                 !local_is_leaving(state, worker->pid) && has_voted(told, worker->number);
    return state->local.target > voted && local_is_expected(state);
}

/* Whether there is, or will be, a worker that can be asked. */
static bool is_other_to_ask(const dispatch *state, const failure *told)
{
    return next_voter(state, told, false) || is_local_to_come(state, told) ||
           seat_is_awaited(state);
}

static void add_vote(failure *told, const worker_seat *worker, bool failed)
{
    if (has_voted(told, worker->number) || told->n_votes == FAILURE_VOTES)
        return;
    told->by[told->n_votes] = worker->number;
    told->failed[told->n_votes++] = failed;
}

bool failure_may_try(const dispatch *state, const worker_seat *worker, const lease *leased)
{
    const failure *told = leased->failures;
    if (!told || lease_solo_item(leased) != told->item)
        return true;
    return !has_voted(told, worker->number) && !seat_lacks_file(worker, &told->lacking) &&
           (strcmp(worker->host, told->host) != 0 || !next_voter(state, told, true));
}

void failure_missed(lease *leased, const worker_seat *worker)
{
    if (leased->failures && lease_solo_item(leased) == leased->failures->item)
        seat_note_lack(worker, &leased->failures->lacking);
}

status failure_told(lease *leased, int64_t item, const char *cause, const worker_seat *worker)
{
    failure **at = &leased->failures;
    while (*at && (*at)->item != item)
        at = &(*at)->next;
    if (!*at) {
        failure *told = (failure *)calloc(1, sizeof *told);
        if (told)
            told->cause = strdup(cause);
        if (!told || !told->cause) {
            free(told);
            return FAIL(ST_NO_MEMORY, "no memory for the failure of a sample");
        }
        told->item = item;
        snprintf(told->host, sizeof told->host, "%s", worker->host);
        *at = told;
    }
    add_vote(*at, worker, true);
    return ST_OK;
}

void failure_denied(lease *leased, const worker_seat *worker)
{
    if (leased->failures && lease_solo_item(leased) == leased->failures->item)
        add_vote(leased->failures, worker, false);
}

/* Dismisses those that said (`failed`) what the others deny. */
static void dismiss_voters(dispatch *state, const failure *told, bool failed)
{
    for (int k = 0; k < told->n_votes; k++) {
        worker_seat *worker = seat_of_number(state, told->by[k]);
        if (!worker || told->failed[k] != failed)
            continue;
        const status st = FAIL(ST_PROTOCOL,
                               "a worker (pid %d on %s) said that sample %lld %s (\"%s\"), and two "
                               "others found that it %s: it is dismissed",
                               (int)worker->pid, worker->host, (long long)lease_sample(told->item),
                               failed ? "cannot be decoded" : "can be decoded", told->cause,
                               failed ? "can" : "cannot");
        state->counts.deviants++;
        seat_tell_dismissal(state, worker, st);
        seat_dismiss(state, worker, "its word about a sample is false");
    }
}

/* Whether all that the item stands for is blank in the consumer's rows, by what was found in
 * another row or by the consumer's own list. Then no worker decodes it, so a trial proves nothing.
 */
static bool is_blank(const lease *leased, int64_t item)
{
    const consumer_seat *consumer = leased->owner;
    int64_t id;
    for (int64_t place = 0; lease_next_hit(leased, item, &place, &id);)
        if (!blank_cause(consumer, id))
            return false;
    return true;
}

/* What is known of the sample of which a worker says that it cannot be decoded. */
typedef enum finding {
    FOUND_OPEN, /* another one is to be asked */
    FOUND_BAD,
    FOUND_FINE,
    FOUND_BLANK, /* it is no longer needed, so nobody is right or wrong */
} finding;

static finding find_out(const dispatch *state, const lease *leased)
{
    const failure *told = leased->failures;
    const int failed = count_failed(told), fine = told->n_votes - failed;
    if (failed > 1)
        return FOUND_BAD;
    if (is_blank(leased, told->item))
        return FOUND_BLANK;
    if (fine > 1)
        return FOUND_FINE;
    return failed > fine && !is_other_to_ask(state, told) ? FOUND_BAD : FOUND_OPEN;
}

void failures_settle(dispatch *state, lease *leased)
{
    finding found;
    while (leased->failures && (found = find_out(state, leased)) != FOUND_OPEN) {
        const failure *told = leased->failures;
        if (found == FOUND_BAD)
            seats_condemn(state, leased, told->item, told->cause);
        if (count_failed(told) > 1 || found == FOUND_FINE)
            dismiss_voters(state, told, found == FOUND_FINE);
        lease_drop_failure(leased);
    }
    if (leased->failures && !leased->solo)
        lease_try_alone(leased, leased->failures->item);
}

bool failure_wants_third(const lease *leased)
{
    return leased->failures && leased->failures->n_votes == FAILURE_VOTES - 1;
}

bool failure_is_stuck(const dispatch *state, const lease *leased)
{
    return failure_wants_third(leased) && !is_other_to_ask(state, leased->failures);
}

void failures_go_on(dispatch *state)
{
    for (lease *leased = state->book.lost; leased; leased = leased->next) {
        if (!leased->failures)
            continue;
        const failure *told = leased->failures;
        if (find_out(state, leased) != FOUND_OPEN) { /* whoever could be asked has left, say */
            lease_end_alone(leased);
            failures_settle(state, leased);
            return; /* workers may have been dismissed, and their leases come back */
        }
        if (!leased->solo) /* what it was tried for before is done, or its worker went meanwhile */
            lease_try_alone(leased, told->item);
        if (failure_wants_third(leased) && !next_voter(state, told, false) &&
            local_call_third(state))
            outside_warn(&state->outside,
                         "two workers disagree on whether sample %lld can be decoded; another "
                         "local worker is started to decide",
                         (long long)lease_sample(told->item));
    }
}
