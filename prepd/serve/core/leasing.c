/* leasing.c: which worker does what next, and which worker takes too long.
 *
 * Idle workers get lost leases first, then new ones, in turn from every index that is being built
 * and every consumer that has credit. A local worker that is at the last item of a row is sent its
 * next lease ahead. Items that are tried alone go to fresh workers (lease.h), index records that
 * need confirming to other machines (claims.c). */
#include <stdlib.h>

#include "prepd/serve/core/dispatch_state.h"

enum { CLAIMS_PER_SEAT = 2 }; /* how many index leases may wait to be confirmed, per worker */
static const int64_t TELL_REMOTE_NS = 1000000000;
/* The time that a supervisor has to start another worker, which says how this one died. */
static const int64_t SUPERVISOR_NS = 3000000000;
/* A worker keeps its own time limit (prepd/worker/time_limit.h). This longer one is for a worker
 * that cannot, because someone stopped it or it is stuck in the kernel; no sample is to blame. */
static const double PATIENCE = 1.25;
static const int64_t PATIENCE_NS = 500000000;

/* Finds out whether a remote worker has gone, which shows only in that nothing can be sent to it.
 * True if its seat was removed. */
static bool is_lost(dispatch *state, worker_seat *worker, int64_t now)
{
    if (worker->lost_ns == 0 && now - worker->told_ns > TELL_REMOTE_NS) {
        worker->told_ns = now;
        if (seat_send_terms(state, &worker->peer) != ST_OK)
            worker->lost_ns = now;
    }
    if (worker->lost_ns == 0 ||
        (worker->work && worker->supervisor[0] && now - worker->lost_ns < SUPERVISOR_NS))
        return false;
    seat_gone(state, worker, LOSS_OUTSIDE, "connection lost");
    return true;
}

void seats_check_time(dispatch *state, int64_t now)
{
    const int64_t limit =
        (int64_t)(state->options->prepd_sample_timeout * PATIENCE * 1e9) + PATIENCE_NS;
    for (worker_seat *worker = state->seats, *next; worker; worker = next) {
        next = worker->next;
        if (!worker->local && is_lost(state, worker, now))
            continue;
        if (!worker->work || worker->lost_ns || now - worker->since_ns <= limit)
            continue;
        if (worker->local)
            local_kill(state, worker->pid);
        else
            breach_note(&state->breaches, worker->from, now);
        seat_set_aside(state, worker, "it hangs past its own time limit");
    }
}

/* Whether index leases pile up that wait for a second worker to confirm them. Then no new ones are
 * produced and the workers that made them wait as well, since every waiting lease is looked at
 * whenever work is given. */
static bool claims_pile_up(const dispatch *state)
{
    int64_t room = CLAIMS_PER_SEAT * (int64_t)state->n_seats;
    for (const lease *leased = state->book.lost; leased && room > 0; leased = leased->next)
        room -= leased->n_claims > 0;
    return room <= 0;
}

/* Makes a new lease, in turn from every index that is being built and every consumer with credit.
 * *out is NULL if there is nothing to do. Of a row, *out_row says the documents. */
static status produce(dispatch *state, lease **out, planned_row *out_row)
{
    const uint32_t count = 2 + (uint32_t)state->n_consumers;
    const bool piled = claims_pile_up(state);
    *out = NULL;
    for (uint32_t tries = 0; tries < count && !*out; tries++) {
        uint32_t place = state->turn++ % count;
        if (place < 2) {
            if (!piled)
                TRY(index_build_produce(state, place ? &state->eval : &state->train, out));
            continue;
        }
        consumer_seat *consumer = state->consumer_seats;
        for (uint32_t k = 2; consumer && k < place; k++)
            consumer = consumer->next;
        if (consumer)
            TRY(consumer_produce(state, consumer, out, out_row));
    }
    return ST_OK;
}

/* Whether the images of this row are to be compressed: a link is slower than the workers. On ipc
 * there is no link. */
static bool press_row(dispatch *state, const worker_seat *worker, const lease *leased)
{
    if (leased->kind != LEASE_ROW || state->place.on_one_machine)
        return false;
    consumer_seat *consumer = leased->owner;
    consumer->press =
        compress_for_consumer(consumer->press, consumer->unreturned, consumer->credit,
                              consumer->n_slots > 0 ? consumer->reserved / consumer->n_slots : 0);
    const bool press = consumer->press || (!worker->local && compress_for_link(&worker->link));
    state->counts.pressed += press;
    return press;
}

/* Whether this worker may be given a lease. One that is sent files (data.ship) waits while the
 * files under way to all workers take prepd.ship_bytes or more; one lease may always go. */
static bool may_ship(const dispatch *state, const worker_seat *worker)
{
    int64_t under_way = 0;
    for (const worker_seat *other = state->seats; worker->ship && other; other = other->next)
        under_way += other->shipped;
    return under_way < state->options->prepd_ship_bytes;
}

/* A lease_filter for lost leases; `asker` is a claim_asker. */
static bool may_take(const void *asker, const lease *leased)
{
    const claim_asker *who = (const claim_asker *)asker;
    return claim_may_take(asker, leased) && audit_may_take(who->dispatch, who->worker, leased) &&
           failure_may_try(who->dispatch, who->worker, leased) && !index_build_waits(leased);
}

static bool may_be_tried(const void *user, const lease *leased)
{
    (void)user;
    return !index_build_waits(leased);
}

/* Finds what a worker does next: a lost lease, or else a new one. *out is NULL if there is nothing.
 * A row is planned once here, for its tag and for what the worker is told. */
static status next_lease(dispatch *state, const worker_seat *worker, lease **out,
                         planned_row *out_row)
{
    const claim_asker asker = {state, worker};
    arena_reset(&state->scratch);
    *out = lease_book_take_if(&state->book, worker->fresh, may_take, &asker);
    if (!*out)
        return state->draining ? ST_OK : produce(state, out, out_row);
    if ((*out)->kind != LEASE_ROW)
        return ST_OK;
    const consumer_seat *consumer = (*out)->owner;
    const status st =
        plan_row(consumer->plan, consumer->from, (*out)->row, &state->scratch, out_row);
    if (st != ST_OK)
        lease_book_return(&state->book, *out);
    return st;
}

/* Gives a worker a lease: to do now, or next if it is at work. False if there was nothing to give.
 */
static bool give_work(dispatch *state, worker_seat *worker)
{
    char *json = NULL;
    size_t size;
    bool any_out = false;
    wire_msg *files = NULL;
    lease *leased;
    planned_row placed = {0};
    for (const worker_seat *other = state->seats; other && !any_out; other = other->next)
        any_out = other->work != NULL;
    if (next_lease(state, worker, &leased, &placed) != ST_OK) {
        dispatch_fail(state, status_last()->code);
        return false;
    }
    if (!leased)
        return false;
    const bool whole_row = leased->kind == LEASE_ROW && lease_solo_item(leased) == LEASE_NO_ITEM;
    if ((worker->ship && wire_msg_new(&files) != ST_OK) ||
        (whole_row && tag_make(state, leased, &placed, worker) != ST_OK) ||
        payload_lease(state, leased, &placed, press_row(state, worker, leased), files, &json,
                      &size) != ST_OK) {
        wire_msg_free(&files);
        lease_book_return(&state->book, leased);
        dispatch_fail(state, status_last()->code);
        return false;
    }
    worker->shipped = files ? (int64_t)wire_msg_bytes(files) : 0;
    state->counts.shipped += (uint64_t)worker->shipped;
    if (worker->work) {
        worker->ahead = leased;
        state->counts.leases_ahead++;
    } else {
        worker->work = leased;
        worker->unbegun = true;
        worker->since_ns = worker->leased_ns = state->now_ns;
    }
    if (!any_out)
        state->answered_ns = worker->since_ns;
    status st = outside_send_json_with(&state->outside, DOOR_WORKERS, &worker->peer, KIND_LEASE,
                                       leased->number, json, size, files);
    wire_msg_free(&files);
    free(json);
    if (st != ST_OK)
        seat_gone(state, worker, LOSS_OUTSIDE, "nothing can be sent to it");
    return true;
}

static bool is_held(const dispatch *state, const worker_seat *worker, int64_t now)
{
    return !worker->local && breach_is_held(&state->breaches, worker->from, now);
}

static bool any_unheld(const dispatch *state, int64_t now)
{
    const worker_seat *worker = state->seats;
    while (worker && (!worker->proved || is_held(state, worker, now)))
        worker = worker->next;
    return worker != NULL;
}

/* Whether a lease waits that this worker may try alone, once it is fresh. A fresh worker that may
 * not must not keep one that may from starting anew. */
static bool may_try_alone(dispatch *state, worker_seat *worker)
{
    const claim_asker asker = {state, worker};
    return lease_book_wants_fresh(&state->book, may_take, &asker);
}

/* Which idle workers are looked for: any; those that may try an item alone; those that can do so at
 * once. */
typedef enum idle_kind { IDLE_ANY, IDLE_FOR_TRIAL, IDLE_FRESH } idle_kind;

/* The worker that has been idle longest and may have work. Workers at an address that broke the
 * protocol again and again get none while there are others, even busy ones: a late row then waits
 * for a worker that will do it. */
static worker_seat *longest_idle(dispatch *state, idle_kind kind)
{
    const int64_t now = state->now_ns;
    const bool others = any_unheld(state, now);
    worker_seat *best = NULL;
    for (worker_seat *worker = state->seats; worker; worker = worker->next)
        if (!worker->work && worker->proved && !worker->ended &&
            (worker->fresh || kind != IDLE_FRESH) &&
            (kind == IDLE_ANY || may_try_alone(state, worker)) &&
            (!best || worker->since_ns < best->since_ns) && may_ship(state, worker) &&
            !(others && is_held(state, worker, now)))
            best = worker;
    return best;
}

/* A sample that is tried alone needs a worker that has done nothing yet. One idle worker is asked
 * to start anew, and no second one until the first had time to come back. */
static void make_one_fresh(dispatch *state)
{
    worker_seat *worker = longest_idle(state, IDLE_FOR_TRIAL);
    if (!worker || seat_is_awaited(state))
        return;
    state->retired_ns = state->now_ns;
    seat_retire(state, worker, true);
}

/* Sends a worker its next lease while it does the last item of a row. It then continues at once
 * instead of waiting until its row is taken, sent on and answered, which can take as long as making
 * the row. It is not done earlier, so that no row waits in one worker while another is idle. It is
 * not done while lost leases wait, since those must begin in idle workers, whose death says which
 * item is to blame. It is not done for remote workers: how long their rows take to arrive decides
 * about compression, and that can only be measured on a worker that waits. */
static void give_ahead(dispatch *state)
{
    for (worker_seat *worker = state->seats, *next; worker && !state->book.lost && !state->stopping;
         worker = next) {
        next = worker->next;
        if (worker->local && worker->proved && worker->work && !worker->ahead &&
            worker->last_item && !worker->ended && !local_is_leaving(state, worker->pid) &&
            !give_work(state, worker))
            return;
    }
}

/* Gives lost leases to workers that may do them. The worker that was asked first may not have taken
 * them, since it made the claims that they carry. */
static void give_claims(dispatch *state)
{
    const int64_t now = state->now_ns;
    const bool others = any_unheld(state, now);
    claims_want_local(state);
    for (worker_seat *worker = state->seats, *next; worker && state->book.lost && !state->stopping;
         worker = next) {
        next = worker->next;
        const claim_asker asker = {state, worker};
        if (!worker->work && worker->proved && !worker->ended && may_ship(state, worker) &&
            !(worker->local && local_is_leaving(state, worker->pid)) &&
            !(others && is_held(state, worker, now)) &&
            lease_book_has(&state->book, worker->fresh, may_take, &asker) &&
            !give_work(state, worker))
            return;
    }
}

static bool wants_third(const lease *leased)
{
    return leased && (audit_wants_third(leased) || failure_wants_third(leased));
}

/* Sends the worker home that was started to decide between two others, once no lease waits for it:
 * all are decided, or their consumers have left. */
static void end_third(dispatch *state)
{
    if (!state->third_worker)
        return;
    for (const lease *leased = state->book.lost; leased; leased = leased->next)
        if (wants_third(leased))
            return;
    for (const worker_seat *worker = state->seats; worker; worker = worker->next)
        if (wants_third(worker->work) || wants_third(worker->ahead))
            return;
    local_third_done(state);
}

void seats_schedule(dispatch *state)
{
    audits_go_on(state);
    failures_go_on(state);
    end_third(state);
    for (worker_seat *worker = state->seats, *next; worker; worker = next) {
        next = worker->next;
        if (!worker->work && worker->local && !worker->ended && !worker->late &&
            local_is_leaving(state, worker->pid))
            seat_retire(state, worker, false);
    }
    while (!state->stopping) {
        bool solo = lease_book_wants_fresh(&state->book, may_be_tried, NULL);
        worker_seat *worker = solo ? longest_idle(state, IDLE_FRESH) : NULL;
        if (solo && !worker)
            make_one_fresh(state);
        if (!worker)
            worker = longest_idle(state, IDLE_ANY);
        if (!worker)
            break;
        if (!give_work(state, worker)) {
            give_claims(state);
            return;
        }
    }
    give_ahead(state);
}
