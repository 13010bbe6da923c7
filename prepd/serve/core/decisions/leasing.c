/* SPDX-License-Identifier: Apache-2.0 */
/* leasing.c: which worker does what next, and which worker takes too long.
 *
 * Idle workers get lost leases first, then new ones, in turn from every index that is being built
 * and every consumer that has credit. A local worker that is at the last item of a row is sent its
 * next lease ahead. Items that are tried alone go to fresh workers (lease.h). What only deciders
 * may do waits for one; while one is idle, it does what others take long for. */
#include <stdlib.h>
#include <string.h>

#include "prepd/serve/core/rows/core_rows.h"
#include "prepd/serve/core/consumers/core_consumers.h"
#include "prepd/serve/core/workers/core_workers.h"
#include "prepd/serve/core/decisions/core_decisions.h"

static const int64_t TELL_REMOTE_NS = 1000000000;
/* A worker keeps its own time limit (prepd/worker/media/image_files.h). This longer one is for a
 * worker that cannot, because someone stopped it or it is stuck in the kernel; no sample is to
 * blame. */
static const double PATIENCE = 1.25;
static const int64_t PATIENCE_NS = 500000000;
/* Of one on another machine that has ended itself, that is noticed so much later at most. */
static const int64_t NOTICED_NS = 1500000000;
/* A worker that is no decider must begin its lease within this time and that of its files at 1
 * MB/s.
 */
static const int64_t BEGIN_NS = 10000000000, SHIPPED_BYTE_NS = 1000;
/* After so long without a sign, a lease of such a worker is made by a decider that is idle: sooner
 * if it has not begun it, which takes an honest one no longer than the way there and back. */
static const int64_t IDLE_TAKES_NS = 2000000000, IDLE_BEGINS_NS = 500000000;

/* Finds out whether a remote worker has gone, which shows only in that nothing can be sent to it.
 * True if its seat was removed. */
static bool is_lost(dispatch *state, worker_seat *worker, int64_t now)
{
    if (!worker->unreachable && now - worker->told_ns > TELL_REMOTE_NS) {
        worker->told_ns = now;
        const status st = seat_send_terms(state, &worker->peer);
        worker->unreachable = st != ST_OK && st != ST_NO_MEMORY;
    }
    if (!worker->unreachable)
        return false;
    /* Of a decider on another machine nobody says how it ended. */
    seat_left(state, worker, worker->decider && worker->work ? LOSS_CRASH : LOSS_OUTSIDE,
              "connection lost");
    return true;
}

/* Whether the worker has taken too long. *out_why says what for. */
static bool is_slow(const dispatch *state, const worker_seat *worker, const char **out_why)
{
    const int64_t now = state->now_ns,
                  hang = (int64_t)(state->options->prepd_sample_timeout * PATIENCE * 1e9) +
                         PATIENCE_NS + (worker->local ? 0 : NOTICED_NS),
                  begin = BEGIN_NS + worker->shipped * SHIPPED_BYTE_NS;
    if (!worker->work && !worker->owes)
        return false;
    if (!worker->decider && worker->unbegun && now - worker->leased_ns > begin) {
        *out_why = "it does not begin its lease";
        return true;
    }
    *out_why = "it hangs past its own time limit";
    return now - worker->since_ns > hang;
}

void seats_check_time(dispatch *state, int64_t now)
{
    const char *why;
    for (worker_seat *worker = state->seats, *next; worker; worker = next) {
        next = worker->next;
        if (!worker->local && is_lost(state, worker, now))
            return; /* others may have gone with it; the next turn goes on */
        if (!is_slow(state, worker, &why))
            continue;
        const bool excluded = !worker->local && seat_breach(state, worker, why);
        if (worker->local)
            local_kill(state, worker->pid);
        account *of = worker->of;
        seat_set_aside(state, worker, why);
        if (!excluded)
            continue;
        seats_send_off(state, of);
        return;
    }
}

/* Whether all that this consumer gets is made by deciders. */
static bool is_suspected(const dispatch *state, const consumer_seat *consumer)
{
    return penalty_holds(&consumer->of->suspected, state->now_ns);
}

/* Makes a new lease, in turn from every index that is being built and every consumer with credit.
 * *out is NULL if there is nothing to do. Of a row, *out_row says the documents. */
static status produce(dispatch *state, const worker_seat *worker, lease **out, planned_row *out_row)
{
    const uint32_t count = 2 + (uint32_t)state->n_consumers;
    *out = NULL;
    for (uint32_t tries = 0; tries < count && !*out; tries++) {
        uint32_t place = state->turn++ % count;
        if (place < 2) {
            if (worker->decider)
                TRY(index_build_produce(state, place ? &state->eval : &state->train, out));
            continue;
        }
        consumer_seat *consumer = state->consumer_seats;
        for (uint32_t k = 2; consumer && k < place; k++)
            consumer = consumer->next;
        if (!consumer || (!worker->decider && is_suspected(state, consumer)))
            continue;
        TRY(consumer_produce(state, consumer, out, out_row));
        if (!*out)
            continue;
        (*out)->decide |= is_suspected(state, consumer);
        TRY(refusal_apply(state, consumer, *out));
        if (worker->decider || !lease_needs_decider(*out))
            continue;
        lease_book_return(&state->book, *out); /* it was refused before: a decider takes it there */
        *out = NULL;
    }
    return ST_OK;
}

/* --- whether images are compressed --- */

/* Bytes per second that one core compresses, and by how much they shrink: measured with patches of
 * COCO pictures, plane filter and entropy coding. */
static const double PRESS_RATE = 0.83e9, RATIO = 2.2;
static const double ON = 0.7, OFF = 0.3; /* shares of the credit that is under way */
static const double NEWEST = 0.3;        /* weight of the newest row in the average */

bool compress_for_consumer(bool was, int64_t unreturned, int64_t credit, int64_t row)
{
    if (unreturned <= row)
        return false; /* the consumer waits for rows, so its link is not the slower part */
    double share = (double)unreturned / (double)(unreturned + (credit > 0 ? credit : 0));
    return share > ON || (was && share > OFF);
}

void compression_link_note(compression_link *link, int64_t bytes, int64_t ns)
{
    double rate = (double)bytes / ((double)(ns > 1 ? ns : 1) * 1e-9);
    link->rate = link->rate > 0.0 ? (1.0 - NEWEST) * link->rate + NEWEST * rate : rate;
}

/* Sending what compression saves, (1 - 1 / RATIO) of each byte at the link's rate, takes longer
 * than compressing the whole byte. */
bool compress_for_link(const compression_link *link)
{
    return link->rate > 0.0 && (1.0 - 1.0 / RATIO) / link->rate > 1.0 / PRESS_RATE;
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

typedef struct asker {
    const dispatch *state;
    const worker_seat *worker;
} asker;

/* A lease_filter for lost leases; `user` is an asker. */
static bool may_take(const void *user, const lease *leased)
{
    const asker *who = (const asker *)user;
    return (who->worker->decider || !lease_needs_decider(leased)) &&
           doubt_may_take(who->worker, leased) &&
           failure_may_try(who->state, who->worker, leased) && !index_build_waits(leased);
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
    const asker who = {state, worker};
    arena_reset(&state->scratch);
    *out = lease_book_take_if(&state->book, worker->fresh, may_take, &who);
    if (!*out)
        return state->draining ? ST_OK : produce(state, worker, out, out_row);
    if ((*out)->kind != LEASE_ROW)
        return ST_OK;
    const consumer_seat *consumer = (*out)->owner;
    const status st =
        plan_row(consumer->plan, consumer->from, (*out)->row, &state->scratch, out_row);
    if (st != ST_OK)
        lease_book_return(&state->book, *out);
    return st;
}

/* Writes the message of a lease, with the files of a worker that has none and the rows with which a
 * decider compares its own. *out_shipped are the bytes of the files. */
static status write_lease(dispatch *state, worker_seat *worker, lease *leased,
                          const planned_row *placed, wire_msg *parts, int64_t *out_shipped,
                          char **out, size_t *out_size)
{
    const bool whole_row = leased->kind == LEASE_ROW && lease_solo_item(leased) == LEASE_NO_ITEM;
    const wire_msg *rows[2];
    if (whole_row)
        TRY(tag_make(state, leased, placed, worker));
    TRY(payload_lease(state, leased, placed, press_row(state, worker, leased),
                      worker->ship ? parts : NULL, out, out_size));
    *out_shipped = (int64_t)wire_msg_bytes(parts);
    for (int k = 0, count = whole_row ? doubt_rows(leased, rows) : 0; k < count; k++)
        TRY(wire_msg_share(parts, rows[k]));
    return ST_OK;
}

static status send_lease(dispatch *state, const worker_seat *worker, const lease *leased,
                         const char *json, size_t size, wire_msg *parts)
{
    return outside_send_json_with(&state->outside, DOOR_WORKERS, &worker->peer, KIND_LEASE,
                                  leased->number, json, size, parts);
}

/* Gives a worker a lease: to do now, or next if it is at work.
 * False if there was nothing to give. */
static bool give_work(dispatch *state, worker_seat *worker)
{
    char *json = NULL;
    size_t size;
    bool any_out = false;
    wire_msg *parts = NULL;
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
    memset(leased->same, 0, sizeof(leased->same));
    leased->comparing = 0;
    if (wire_msg_new(&parts) != ST_OK || write_lease(state, worker, leased, &placed, parts,
                                                     &worker->shipped, &json, &size) != ST_OK) {
        wire_msg_free(&parts);
        free(json);
        lease_book_return(&state->book, leased);
        dispatch_fail(state, status_last()->code);
        return false;
    }
    state->counts.shipped += (uint64_t)worker->shipped;
    if (worker->of)
        worker->of->leases++;
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
    status st = send_lease(state, worker, leased, json, size, parts);
    wire_msg_free(&parts);
    free(json);
    if (st != ST_OK)
        seat_gone(state, worker, LOSS_OUTSIDE, "nothing can be sent to it");
    return true;
}

/* Whether a lease waits that this worker may try alone, once it is fresh. A fresh worker that may
 * not must not keep one that may from starting anew. */
static bool may_try_alone(dispatch *state, const worker_seat *worker)
{
    const asker who = {state, worker};
    return lease_book_wants_fresh(&state->book, may_take, &who);
}

/* Which idle workers are looked for: any; those that may try an item alone; those that can do so at
 * once. */
typedef enum idle_kind { IDLE_ANY, IDLE_FOR_TRIAL, IDLE_FRESH } idle_kind;

static bool is_idle(const dispatch *state, const worker_seat *worker)
{
    return !worker->work && !worker->owes && seat_can_work(worker) &&
           (worker->decider || account_may_have(worker->of)) && may_ship(state, worker);
}

/* The worker that has been idle longest and may have work. */
static worker_seat *longest_idle(dispatch *state, idle_kind kind)
{
    worker_seat *best = NULL;
    for (worker_seat *worker = state->seats; worker; worker = worker->next)
        if (is_idle(state, worker) && !worker->passed &&
            (!best || worker->since_ns < best->since_ns) && (worker->fresh || kind != IDLE_FRESH) &&
            (kind == IDLE_ANY || may_try_alone(state, worker)))
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

/* Whether an idle decider would be faster: there was no sign of the worker for a while, or it has
 * had its lease for much longer than deciders take for one, since signs can be spaced out. */
static bool is_outrun(const dispatch *state, const worker_seat *worker)
{
    enum { TIMES = 4 };
    const int64_t files = worker->shipped * SHIPPED_BYTE_NS,
                  silent = state->now_ns - worker->since_ns;
    return !worker->decider && worker->work && worker->work->owner &&
           (silent > (worker->unbegun ? IDLE_BEGINS_NS + files : IDLE_TAKES_NS) ||
            state->now_ns - worker->leased_ns > IDLE_TAKES_NS + files + TIMES * state->row_ns);
}

/* Has an idle decider make what others take long for. */
static void take_from_slow(dispatch *state)
{
    worker_seat *slow = NULL;
    for (worker_seat *worker = state->seats; worker; worker = worker->next)
        if (is_outrun(state, worker) && (!slow || worker->leased_ns < slow->leased_ns))
            slow = worker;
    if (!slow)
        return;
    worker_seat *idle = state->seats;
    while (idle && !(idle->decider && is_idle(state, idle)))
        idle = idle->next;
    if (!idle)
        return;
    if (slow->unbegun)
        account_lost(slow->of);
    lease *leased = seat_take_away(slow);
    leased->decide = true;
    state->counts.taken++;
    lease_unbegun(&state->book, leased);
    (void)give_work(state, idle);
}

/* How many deciders are needed for what waits for one. */
static int deciders_needed(const dispatch *state)
{
    int most = state->train.build.active || state->eval.build.active;
    for (const lease *leased = state->book.lost; leased; leased = leased->next) {
        const int count = lease_needs_decider(leased) ? doubt_deciders(state, leased) : 0;
        most = count > most ? count : most;
    }
    for (const consumer_seat *consumer = state->consumer_seats; consumer && most == 0;
         consumer = consumer->next)
        most = is_suspected(state, consumer);
    return most;
}

/* Counts what each key's workers have in work. */
static void count_leases(dispatch *state)
{
    for (int i = 0; i < state->accounts.used; i++)
        state->accounts.of[i]->leases = 0;
    for (worker_seat *worker = state->seats; worker; worker = worker->next) {
        worker->passed = false;
        if (worker->of)
            worker->of->leases += worker->work || worker->owes;
    }
}

/* Gives work to idle workers. Where one got nothing, another gets nothing either unless a lost
 * lease is for it alone, or it is a decider and the first was none. */
static void give_all(dispatch *state)
{
    bool over[2] = {false, false};
    while (!state->stopping) {
        bool solo = lease_book_wants_fresh(&state->book, may_be_tried, NULL);
        worker_seat *worker = solo ? longest_idle(state, IDLE_FRESH) : NULL;
        if (solo && !worker)
            make_one_fresh(state);
        if (!worker)
            worker = longest_idle(state, IDLE_ANY);
        if (!worker)
            return;
        const asker who = {state, worker};
        if (over[worker->decider] && !lease_book_has(&state->book, worker->fresh, may_take, &who)) {
            worker->passed = true;
            continue;
        }
        if (give_work(state, worker))
            continue;
        if (state->outcome != ST_OK)
            return;
        worker->passed = true;
        over[worker->decider] = true;
        over[false] |= worker->decider;
    }
}

void seats_schedule(dispatch *state)
{
    doubts_poll(state);
    failures_poll(state);
    local_need(state, deciders_needed(state));
    for (worker_seat *worker = state->seats, *next; worker; worker = next) {
        next = worker->next;
        if (!worker->work && worker->local && !worker->ended && !worker->late &&
            local_is_leaving(state, worker->pid))
            seat_retire(state, worker, false);
    }
    count_leases(state);
    give_all(state);
    if (!state->stopping)
        take_from_slow(state);
    give_ahead(state);
}
