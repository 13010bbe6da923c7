/* seats.c: the workers that are here: how they are found, how they go, and whether the samples that
 * they had in work are blamed. How they come is in joining.c; what they say is in
 * worker_messages.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prepd/serve/core/dispatch_state.h"

worker_seat *seat_find(dispatch *state, const wire_peer *peer)
{
    for (worker_seat *worker = state->seats; worker; worker = worker->next)
        if (worker->peer.size == peer->size && memcmp(worker->peer.id, peer->id, peer->size) == 0)
            return worker;
    return NULL;
}

worker_seat *seat_of_pid(dispatch *state, pid_t pid)
{
    for (worker_seat *worker = state->seats; worker; worker = worker->next)
        if (worker->local && worker->pid == pid)
            return worker;
    return NULL;
}

worker_seat *seat_of_number(const dispatch *state, uint64_t number)
{
    worker_seat *worker = state->seats;
    while (worker && worker->number != number)
        worker = worker->next;
    return worker;
}

bool seat_is_awaited(const dispatch *state)
{
    static const int64_t FRESH_PAUSE_NS = 2000000000; /* one that is not back by then is lost */
    return state->retired_ns && state->now_ns - state->retired_ns < FRESH_PAUSE_NS;
}

bool seat_can_work(const dispatch *state, const worker_seat *worker)
{
    return worker->proved && !worker->ended && !worker->lost_ns &&
           (worker->local || !breach_is_held(&state->breaches, worker->from, state->now_ns));
}

bool seat_lacks_file(const worker_seat *worker, const lacking *file)
{
    bool lacks = file->count == MOST_LACKING;
    for (int k = 0; k < file->count; k++)
        lacks |= strcmp(file->host[k], worker->host) == 0;
    return lacks && !worker->local && !worker->ship;
}

void seat_note_lack(const worker_seat *worker, lacking *inout_file)
{
    if (worker->local || worker->ship || seat_lacks_file(worker, inout_file))
        return;
    char *host = inout_file->host[inout_file->count++];
    snprintf(host, sizeof(inout_file->host[0]), "%s", worker->host);
}

static void remove_seat(dispatch *state, worker_seat *worker)
{
    worker_seat **at = &state->seats;
    while (*at && *at != worker)
        at = &(*at)->next;
    if (*at) {
        *at = worker->next;
        state->n_seats--;
    }
    free(worker);
}

source *lease_source(const lease *leased)
{
    return leased->kind == LEASE_ROW ? ((consumer_seat *)leased->owner)->src : leased->owner;
}

void seats_quarantine(dispatch *state, source *section, int64_t id, const char *cause)
{
    bool fresh = false;
    const status st = bad_samples_add(&section->bad, id, cause, &fresh);
    if (st != ST_OK) {
        dispatch_fail(state, st);
        return;
    }
    if (!fresh)
        return;
    outside_warn(&state->outside, "sample quarantined section=%s id=%lld cause=\"%s\"",
                 section->name, (long long)id, cause);
    state->counts.quarantined++;
    known_warn(state, section, &section->near_full);
}

void seats_condemn(dispatch *state, const lease *leased, int64_t item, const char *cause)
{
    int64_t id;
    for (int64_t place = 0; lease_next_hit(leased, item, &place, &id);)
        seats_quarantine(state, lease_source(leased), id, cause);
}

/* Counts a lease whose worker went, and quarantines or refuses the item that is found to be poison.
 */
static void lose_lease(dispatch *state, lease *leased, loss how, const char *what)
{
    int64_t item = LEASE_NO_ITEM;
    char cause[160];
    if (!leased->owner) { /* its consumer has left */
        lease_free(&leased);
        return;
    }
    state->counts.leases_lost++;
    if (how == LOSS_CRASH)
        state->counts.crashes++;
    else if (how == LOSS_TIMEOUT)
        state->counts.timeouts++;
    else if (how == LOSS_BREACH)
        state->counts.breaches++;
    else
        state->counts.outside++;
    if (lease_lost(&state->book, leased, how, &item) != LEASE_POISON) {
        index_build_order_trials(leased);
        return;
    }
    if (how == LOSS_TIMEOUT)
        snprintf(cause, sizeof(cause), "takes a worker longer than %.3g s (prepd.sample_timeout)",
                 state->options->prepd_sample_timeout);
    else
        snprintf(cause, sizeof(cause), "ends its worker: %s", what);
    if (leased->kind == LEASE_ROW) {
        seats_condemn(state, leased, item, cause);
        return;
    }
    if (index_build_poison(state, leased, item, cause) != ST_OK)
        dispatch_fail(state, status_last()->code);
}

void seat_give_back(dispatch *state, lease *leased)
{
    if (leased && leased->owner)
        lease_unbegun(&state->book, leased);
    else if (leased)
        lease_free(&leased); /* its consumer has left */
}

/* Says in the log that a worker is no longer counted on. */
static void log_gone(const dispatch *state, const worker_seat *worker, loss how, const char *what)
{
    if (worker->work || how != LOSS_OUTSIDE)
        outside_info(&state->outside, "worker gone%s pid=%d host=\"%s\" cause=\"%s\"",
                     worker->work ? ", its lease is given again" : "", (int)worker->pid,
                     worker->host, what);
}

void seat_gone(dispatch *state, worker_seat *worker, loss how, const char *what)
{
    lease *leased = worker->work;
    seat_give_back(state, worker->ahead);
    log_gone(state, worker, how, what);
    remove_seat(state, worker);
    if (leased)
        lose_lease(state, leased, how, what);
}

void seat_set_aside(dispatch *state, worker_seat *worker, const char *what)
{
    lease *leased = worker->work, *ahead = worker->ahead;
    log_gone(state, worker, LOSS_OUTSIDE, what);
    worker->work = worker->ahead = NULL;
    worker->proved = worker->unbegun = false;
    worker->late = true;
    worker->shipped = 0;
    seat_give_back(state, ahead);
    lose_lease(state, leased, LOSS_OUTSIDE, what);
}

void seat_tell_dismissal(dispatch *state, const worker_seat *worker, status st)
{
    outside_warn(&state->outside, "worker dismissed: %s", status_text());
    if (outside_send_error(&state->outside, DOOR_WORKERS, &worker->peer, 0, st) != ST_OK)
        outside_debug(&state->outside, "worker could not be told to leave: %s", status_text());
}

void seat_dismiss(dispatch *state, worker_seat *worker, const char *what)
{
    if (worker->local)
        local_kill(state, worker->pid);
    else
        breach_note(&state->breaches, worker->from, state->now_ns);
    seat_gone(state, worker, LOSS_BREACH, what);
}

void seat_unreachable(const dispatch *state, worker_seat *worker)
{
    if (!worker->local && !worker->lost_ns)
        worker->lost_ns = state->now_ns;
}

void seat_retire(dispatch *state, worker_seat *worker, bool again)
{
    const char *json = again ? "{\"again\":true}" : "{\"again\":false}";
    if (outside_send_json(&state->outside, DOOR_WORKERS, &worker->peer, KIND_BYE, 0, json,
                          strlen(json)) != ST_OK)
        outside_debug(&state->outside, "worker could not be told to leave: %s", status_text());
    remove_seat(state, worker);
}
