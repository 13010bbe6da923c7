/* SPDX-License-Identifier: Apache-2.0 */
/* seats.c: the workers that are here: how they are found, how they go, and whether the samples that
 * they had in work are blamed. How they come is in joining.c; what they say is in
 * peer_messages.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prepd/serve/core/rows/core_rows.h"
#include "prepd/serve/core/workers/core_workers.h"

/* --- TERMS, what every worker is sent of the options --- */

/* TERMS hold what a worker must know to do any lease: all options, as YAML that can be loaded, and
 * the digest of the model folder whose tokenizer the index was made with. */
status dispatch_make_terms(dispatch *state)
{
    char *yaml = NULL, model[HASH_TEXT];
    size_t yaml_size = 0, size;
    FILE *file = open_memstream(&yaml, &yaml_size);
    if (!file)
        return FAIL(ST_NO_MEMORY, "no memory for the terms");
    conf_print(state->options, file);
    if (fclose(file) != 0) {
        free(yaml);
        return FAIL(ST_NO_MEMORY, "no memory for the terms");
    }
    json_writer writer;
    json_writer_init(&writer);
    json_begin_object(&writer);
    json_put_key_cstr(&writer, "version", TESSERA_VERSION);
    json_put_key_text(&writer, "options", yaml, yaml_size);
    hash_print(state->train.model_digest, model);
    json_put_key_cstr(&writer, "model", model);
    json_put_key_bool(&writer, "videos", state->videos);
    json_end_object(&writer);
    char *text = NULL;
    status st = json_writer_take(&writer, &text, &size);
    if (st == ST_OK) {
        free(state->terms);
        state->terms = text;
    }
    json_writer_done(&writer);
    free(yaml);
    return st;
}

status seat_send_terms(dispatch *state, const wire_peer *to)
{
    return outside_send_json(&state->outside, DOOR_WORKERS, to, KIND_TERMS, 0, state->terms,
                             strlen(state->terms));
}

status dispatch_new_terms(dispatch *state)
{
    TRY(dispatch_make_terms(state));
    for (worker_seat *worker = state->seats; worker; worker = worker->next) {
        worker->excused = true;
        if (seat_send_terms(state, &worker->peer) != ST_OK)
            core_debug(state, "worker could not be told: %s", status_text());
    }
    return ST_OK;
}

/* --- seats --- */

worker_seat *seat_find(dispatch *state, const wire_peer *peer)
{
    for (worker_seat *worker = state->seats; worker; worker = worker->next)
        if (wire_peer_is(&worker->peer, peer))
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

bool seat_can_work(const worker_seat *worker)
{
    return worker->proved && !worker->ended && !worker->late;
}

static void remove_seat(dispatch *state, worker_seat *worker)
{
    worker_seat **at = &state->seats;
    while (*at && *at != worker)
        at = &(*at)->next;
    if (*at) {
        *at = worker->next;
        state->n_seats--;
        if (worker->of) {
            worker->of->uses--;
            worker->of->seats--;
        }
    }
    free(worker);
}

source *lease_source(const lease *leased)
{
    return leased->kind == LEASE_ROW ? ((consumer_seat *)leased->owner)->src : leased->owner;
}

void quarantine_sample(dispatch *state, source *section, int64_t id, const char *cause)
{
    bool fresh = false;
    const status st = bad_samples_add(&section->bad, id, cause, &fresh);
    if (st != ST_OK) {
        dispatch_fail(state, st);
        return;
    }
    if (!fresh)
        return;
    core_warn(state, "sample quarantined section=%s id=%lld cause=\"%s\"", section->name,
              (long long)id, cause);
    state->counts.quarantined++;
    known_warn(state, section, &section->near_full);
}

void quarantine_item(dispatch *state, const lease *leased, int64_t item, const char *cause)
{
    int64_t id;
    for (int64_t place = 0; lease_next_hit(leased, item, &place, &id);)
        quarantine_sample(state, lease_source(leased), id, cause);
}

static void count_loss(dispatch *state, loss how)
{
    uint64_t *count[] = {[LOSS_OUTSIDE] = &state->counts.outside,
                         [LOSS_CRASH] = &state->counts.crashes,
                         [LOSS_TIMEOUT] = &state->counts.timeouts,
                         [LOSS_BREACH] = &state->counts.breaches};
    state->counts.leases_lost++;
    (*count[how])++;
}

/* Counts a lease whose worker went, and condemns or refuses the item that is found to be poison. */
static void lose_lease(dispatch *state, lease *leased, bool decider, loss how, const char *what)
{
    int64_t item = LEASE_NO_ITEM;
    char cause[160];
    if (!leased->owner) { /* its consumer has left */
        lease_free(&leased);
        return;
    }
    count_loss(state, how);
    if (!decider) {
        lease_struck(&state->book, leased);
        return;
    }
    if (leased->doubt && leased->comparing && (how == LOSS_CRASH || how == LOSS_TIMEOUT)) {
        doubt_killed(leased->doubt); /* no sample of the row did that */
        how = LOSS_OUTSIDE;
    }
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
        quarantine_item(state, leased, item, cause);
        return;
    }
    if (index_build_poison(state, leased, item, cause) != ST_OK)
        dispatch_fail(state, status_last()->code);
}

/* A lease that the worker has not begun; may be NULL. */
static void give_back(dispatch *state, const worker_seat *worker, lease *leased)
{
    if (!leased)
        return;
    if (!leased->owner)
        lease_free(&leased); /* its consumer has left */
    else if (worker->decider)
        lease_unbegun(&state->book, leased);
    else
        lease_struck(&state->book, leased);
}

/* Says in the log that a worker is no longer counted on. */
static void log_gone(const dispatch *state, const worker_seat *worker, loss how, const char *what)
{
    if (worker->work || how != LOSS_OUTSIDE)
        core_info(state, "worker gone%s pid=%d host=\"%s\" cause=\"%s\"",
                  worker->work ? ", its lease is given again" : "", (int)worker->pid, worker->host,
                  what);
}

void seat_gone(dispatch *state, worker_seat *worker, loss how, const char *what)
{
    lease *leased = worker->work;
    const bool decider = worker->decider;
    give_back(state, worker, worker->ahead);
    log_gone(state, worker, how, what);
    remove_seat(state, worker);
    if (leased)
        lose_lease(state, leased, decider, how, what);
}

void seat_set_aside(dispatch *state, worker_seat *worker, const char *what)
{
    lease *leased = worker->work, *ahead = worker->ahead;
    log_gone(state, worker, LOSS_OUTSIDE, what);
    worker->work = worker->ahead = NULL;
    worker->proved = worker->unbegun = worker->owes = false;
    worker->late = true;
    worker->shipped = 0;
    give_back(state, worker, ahead);
    if (leased)
        lose_lease(state, leased, worker->decider, LOSS_OUTSIDE, what);
}

lease *seat_take_away(worker_seat *worker)
{
    lease *leased = worker->work;
    worker->work = NULL;
    worker->owes = true;
    return leased;
}

status seat_send_wait(dispatch *state, const wire_peer *to, int64_t wait_ns, const char *why)
{
    static const int64_t SECOND_NS = 1000000000;
    json_writer writer;
    json_writer_init(&writer);
    json_begin_object(&writer);
    json_put_key_bool(&writer, "again", true);
    json_put_key_int(&writer, "wait_s", (wait_ns + SECOND_NS - 1) / SECOND_NS);
    json_put_key_cstr(&writer, "why", why);
    json_end_object(&writer);
    return outside_send_writer(&state->outside, DOOR_WORKERS, to, KIND_BYE, 0, &writer);
}

void seats_send_off(dispatch *state, account *of)
{
    core_warn(state,
              "key excluded, prepd admit lifts it name=\"%s\" seconds=%lld workers=%d why=\"%s\"",
              of->name, (long long)((of->excluded.until_ns - state->now_ns) / 1000000000),
              of->seats, of->why);
    for (worker_seat *worker = state->seats, *next; worker; worker = next) {
        next = worker->next;
        if (worker->of != of || worker->decider)
            continue;
        if (seat_send_wait(state, &worker->peer, of->excluded.until_ns - state->now_ns, of->why) !=
            ST_OK)
            core_debug(state, "worker could not be told to wait: %s", status_text());
        seat_gone(state, worker, LOSS_BREACH, "its key is excluded");
    }
}

bool seat_breach(const dispatch *state, const worker_seat *worker, const char *why)
{
    if (worker->decider)
        return false;
    account_lost(worker->of);
    return account_breach(worker->of, why, state->now_ns);
}

void seat_send_dismissal(dispatch *state, const worker_seat *worker, status st)
{
    core_warn(state, "worker dismissed: %s", status_text());
    outside_send_error(&state->outside, DOOR_WORKERS, &worker->peer, st);
}

void seat_dismiss(dispatch *state, worker_seat *worker, const char *what)
{
    account *excluded = NULL;
    if (worker->local)
        local_kill(state, worker->pid);
    else if (seat_breach(state, worker, what))
        excluded = worker->of;
    seat_gone(state, worker, LOSS_BREACH, what);
    if (excluded)
        seats_send_off(state, excluded);
}

void seat_left(dispatch *state, worker_seat *worker, loss how, const char *what)
{
    static const int64_t EMPTY_NS = 3000000000;
    account *excluded = NULL;
    if (worker->unbegun) {
        give_back(state, worker, worker->work);
        worker->work = NULL;
    } else if (!worker->begun && !worker->excused && state->now_ns - worker->joined_ns < EMPTY_NS &&
               seat_breach(state, worker, "it joined again and again without working")) {
        excluded = worker->of;
    }
    seat_gone(state, worker, how, what);
    if (excluded)
        seats_send_off(state, excluded);
}

void seat_unreachable(worker_seat *worker)
{
    worker->unreachable = !worker->local;
}

void seat_send_bye(dispatch *state, const wire_peer *to, const char *json)
{
    if (outside_send_json(&state->outside, DOOR_WORKERS, to, KIND_BYE, 0, json, strlen(json)) !=
        ST_OK)
        core_debug(state, "worker could not be told to leave: %s", status_text());
}

void seat_retire(dispatch *state, worker_seat *worker, bool again)
{
    seat_send_bye(state, &worker->peer, again ? BYE_AGAIN : BYE_FOR_GOOD);
    remove_seat(state, worker);
}

/* --- supervisors ---
 *
 * The remote processes that start workers again (prepd/worker/supervisor.h). The
 * daemon keeps a list of them so that it can tell them to leave when it is drained for good.
 * Telling their workers would not be enough, since a worker may be between two lives just then, or
 * may never have come so far as to join. */

/* A supervisor says every second that it is there. After this much silence it counts as gone;
 * ZeroMQ reports nothing. */
static const int64_t SILENT_NS = 10000000000;

void supervisors_tick(dispatch *state, int64_t now)
{
    for (supervisor_seat **at = &state->supervisors; *at;) {
        supervisor_seat *seat = *at;
        if (now - seat->heard_ns < SILENT_NS) {
            at = &seat->next;
            continue;
        }
        *at = seat->next;
        state->n_supervisors--;
        free(seat);
    }
}

status supervisor_note(dispatch *state, const wire_peer *from, const char *name)
{
    const int64_t now = state->now_ns;
    for (supervisor_seat *seat = state->supervisors; seat; seat = seat->next)
        if (wire_peer_is(&seat->peer, from)) {
            seat->heard_ns = now;
            return ST_OK;
        }
    if (state->n_supervisors >= MAX_SEATS)
        return FAIL_IN(ST_UNAVAILABLE, name, "%d supervisors of workers are here already",
                       MAX_SEATS);
    supervisor_seat *newest = calloc(1, sizeof *newest);
    if (!newest)
        return FAIL(ST_NO_MEMORY, "no memory for a supervisor of workers");
    *newest = (supervisor_seat){.peer = *from, .heard_ns = now, .next = state->supervisors};
    state->supervisors = newest;
    state->n_supervisors++;
    return ST_OK;
}

void supervisors_leave(dispatch *state, bool tell)
{
    while (state->supervisors) {
        supervisor_seat *seat = state->supervisors;
        if (tell)
            seat_send_bye(state, &seat->peer, "{}");
        state->supervisors = seat->next;
        free(seat);
    }
    state->n_supervisors = 0;
}
