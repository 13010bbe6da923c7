/* leasing.c: which worker does what next, and which worker takes too long.
 *
 * Idle workers get lost leases first, then new ones, in turn from every index that is being built
 * and every consumer that has credit. A local worker that is at the last item of a row is sent its
 * next lease ahead. Items that are tried alone go to fresh workers (lease.h), index records that
 * need confirming to other machines (claims.c). */
#include <stdlib.h>

#include "common/base/clock.h"
#include "prepd/serve/dispatch_state.h"

enum { CLAIMS_PER_SEAT = 2 }; /* how many index leases may wait to be confirmed, per worker */
static const int64_t TELL_REMOTE_NS = 1000000000;
/* The time that a supervisor has to start another worker, which says how this one died. */
static const int64_t SUPERVISOR_NS = 3000000000;
/* A worker keeps its own time limit (prepd/worker/time_limit.h). This longer one is for a worker
 * that cannot, because someone stopped it or it is stuck in the kernel; no sample is to blame. */
static const double PATIENCE = 1.25;
static const int64_t PATIENCE_NS = 500000000;
/* A retired worker that is not back by then is lost. */
static const int64_t FRESH_PAUSE_NS = 2000000000;

/* Finds out whether a remote worker has gone, which shows only in that nothing can be sent to it.
 * True if its seat was removed. */
static bool is_lost(dispatch *d, worker_seat *worker, int64_t now)
{
    if (worker->lost_ns == 0 && now - worker->told_ns > TELL_REMOTE_NS) {
        worker->told_ns = now;
        if (seat_send_terms(d, &worker->peer) != ST_OK)
            worker->lost_ns = now;
    }
    if (worker->lost_ns == 0 ||
        (worker->work && worker->supervisor[0] && now - worker->lost_ns < SUPERVISOR_NS))
        return false;
    seat_gone(d, worker, LOSS_OUTSIDE, "connection lost");
    return true;
}

void seats_check_time(dispatch *d, int64_t now)
{
    const int64_t limit =
        (int64_t)(d->options->prepd_sample_timeout * PATIENCE * 1e9) + PATIENCE_NS;
    for (worker_seat *worker = d->seats, *next; worker; worker = next) {
        next = worker->next;
        if (!worker->local && is_lost(d, worker, now))
            continue;
        if (!worker->work || worker->lost_ns || now - worker->since_ns <= limit)
            continue;
        if (worker->local)
            local_kill(d, worker->pid);
        else
            breach_note(&d->breaches, worker->from, now);
        seat_gone(d, worker, LOSS_OUTSIDE, "it hangs past its own time limit");
    }
}

/* Whether index leases pile up that wait for a second worker to confirm them. Then no new ones are
 * produced and the workers that made them wait as well, since every waiting lease is looked at
 * whenever work is given. */
static bool claims_pile_up(const dispatch *d)
{
    int64_t room = CLAIMS_PER_SEAT * (int64_t)d->n_seats;
    for (const lease *l = d->book.lost; l && room > 0; l = l->next)
        room -= l->n_claims > 0;
    return room <= 0;
}

/* Makes a new lease, in turn from every index that is being built and every consumer with credit.
 * *out is NULL if there is nothing to do. */
static status produce(dispatch *d, lease **out)
{
    const uint32_t n = 2 + (uint32_t)d->n_consumers;
    const bool piled = claims_pile_up(d);
    *out = NULL;
    for (uint32_t tries = 0; tries < n && !*out; tries++) {
        uint32_t place = d->turn++ % n;
        if (place < 2) {
            if (!piled)
                TRY(index_build_produce(d, place ? &d->eval : &d->train, out));
            continue;
        }
        consumer_seat *consumer = d->consumer_seats;
        for (uint32_t k = 2; consumer && k < place; k++)
            consumer = consumer->next;
        if (consumer)
            TRY(consumer_produce(d, consumer, out));
    }
    return ST_OK;
}

/* Whether the images of this row are to be compressed: a link is slower than the workers. On ipc
 * there is no link. */
static bool press_row(dispatch *d, const worker_seat *worker, const lease *l)
{
    if (l->kind != LEASE_ROW || wire_is_ipc(d->options->prepd_endpoint))
        return false;
    consumer_seat *consumer = l->owner;
    consumer->press =
        compress_for_consumer(consumer->press, consumer->unreturned, consumer->credit,
                              consumer->n_slots > 0 ? consumer->reserved / consumer->n_slots : 0);
    const bool press = consumer->press || (!worker->local && compress_for_link(&worker->link));
    d->counts.pressed += press;
    return press;
}

/* Whether this worker may be given a lease. One that is sent files (data.ship) waits while the
 * files under way to all workers take prepd.ship_bytes or more; one lease may always go. */
static bool may_ship(const dispatch *d, const worker_seat *worker)
{
    int64_t under_way = 0;
    for (const worker_seat *other = d->seats; worker->ship && other; other = other->next)
        under_way += other->shipped;
    return under_way < d->options->prepd_ship_bytes;
}

/* Gives a worker a lease: to do now, or next if it is at work. False if there was nothing to give.
 */
static bool give_work(dispatch *d, worker_seat *worker)
{
    char *json = NULL;
    size_t size;
    bool any_out = false;
    wire_msg *files = NULL;
    for (const worker_seat *other = d->seats; other && !any_out; other = other->next)
        any_out = other->work != NULL;
    const claim_asker asker = {d, worker};
    lease *l = lease_book_take_if(&d->book, worker->fresh, claim_may_take, &asker);
    if (!l && (d->draining || produce(d, &l) != ST_OK)) {
        if (!d->draining)
            dispatch_fail(d, status_last()->code);
        return false;
    }
    if (!l)
        return false;
    if ((worker->ship && wire_msg_new(&files) != ST_OK) ||
        payload_lease(d, l, press_row(d, worker, l), files, &json, &size) != ST_OK) {
        wire_msg_free(&files);
        lease_book_return(&d->book, l);
        dispatch_fail(d, status_last()->code);
        return false;
    }
    worker->shipped = files ? (int64_t)wire_msg_bytes(files) : 0;
    d->counts.shipped += (uint64_t)worker->shipped;
    if (worker->work) {
        worker->ahead = l;
        d->counts.leases_ahead++;
    } else {
        worker->work = l;
        worker->unbegun = true;
        worker->since_ns = worker->leased_ns = clock_ns();
    }
    if (!any_out)
        d->answered_ns = worker->since_ns;
    status st =
        wire_send_json_with(d->workers, &worker->peer, KIND_LEASE, l->number, json, size, files);
    wire_msg_free(&files);
    free(json);
    if (st != ST_OK)
        seat_gone(d, worker, LOSS_OUTSIDE, "nothing can be sent to it");
    return true;
}

static bool is_held(const dispatch *d, const worker_seat *worker, int64_t now)
{
    return !worker->local && breach_is_held(&d->breaches, worker->from, now);
}

static bool any_unheld(const dispatch *d, int64_t now)
{
    const worker_seat *worker = d->seats;
    while (worker && (!worker->proved || is_held(d, worker, now)))
        worker = worker->next;
    return worker != NULL;
}

/* The worker that has been idle longest and may have work. Workers at an address that broke the
 * protocol again and again get none while there are others, even busy ones: a late row then waits
 * for a worker that will do it. */
static worker_seat *longest_idle(dispatch *d, bool only_fresh)
{
    const int64_t now = clock_ns();
    const bool others = any_unheld(d, now);
    worker_seat *best = NULL;
    for (worker_seat *worker = d->seats; worker; worker = worker->next)
        if (!worker->work && worker->proved && (worker->fresh || !only_fresh) &&
            (!best || worker->since_ns < best->since_ns) && may_ship(d, worker) &&
            !(others && is_held(d, worker, now)))
            best = worker;
    return best;
}

/* A sample that is tried alone needs a worker that has done nothing yet. One idle worker is asked
 * to start anew, and no second one until the first had time to come back. */
static void make_one_fresh(dispatch *d)
{
    int64_t now = clock_ns();
    worker_seat *worker = longest_idle(d, false);
    if (!worker || now - d->retired_ns < FRESH_PAUSE_NS)
        return;
    d->retired_ns = now;
    seat_retire(d, worker, true);
}

/* Sends a worker its next lease while it does the last item of a row. It then continues at once
 * instead of waiting until its row is taken, sent on and answered, which can take as long as making
 * the row. It is not done earlier, so that no row waits in one worker while another is idle. It is
 * not done while lost leases wait, since those must begin in idle workers, whose death says which
 * item is to blame. It is not done for remote workers: how long their rows take to arrive decides
 * about compression, and that can only be measured on a worker that waits. */
static void give_ahead(dispatch *d)
{
    for (worker_seat *worker = d->seats, *next; worker && !d->book.lost && !d->stopping;
         worker = next) {
        next = worker->next;
        if (worker->local && worker->work && !worker->ahead && worker->last_item &&
            !local_is_leaving(d, worker->pid) && !give_work(d, worker))
            return;
    }
}

/* Gives lost leases to workers that may do them. The worker that was asked first may not have taken
 * them, since it made the claims that they carry. */
static void give_claims(dispatch *d)
{
    const int64_t now = clock_ns();
    const bool others = any_unheld(d, now);
    claims_want_local(d);
    for (worker_seat *worker = d->seats, *next; worker && d->book.lost && !d->stopping;
         worker = next) {
        next = worker->next;
        const claim_asker asker = {d, worker};
        if (!worker->work && worker->proved && may_ship(d, worker) &&
            !(worker->local && local_is_leaving(d, worker->pid)) &&
            !(others && is_held(d, worker, now)) &&
            lease_book_has(&d->book, worker->fresh, claim_may_take, &asker) &&
            !give_work(d, worker))
            return;
    }
}

void seats_schedule(dispatch *d)
{
    for (worker_seat *worker = d->seats, *next; worker; worker = next) {
        next = worker->next;
        if (!worker->work && worker->local && local_is_leaving(d, worker->pid))
            seat_retire(d, worker, false);
    }
    while (!d->stopping) {
        bool solo = lease_book_wants_fresh(&d->book);
        worker_seat *worker = solo ? longest_idle(d, true) : NULL;
        if (solo && !worker)
            make_one_fresh(d);
        if (!worker)
            worker = longest_idle(d, false);
        if (!worker)
            break;
        if (!give_work(d, worker)) {
            give_claims(d);
            return;
        }
    }
    give_ahead(d);
}
