/* leasing.c: which worker does what next, and who is taking too long. */
#include <stdlib.h>

#include "common/base/clock.h"
#include "prepd/serve/dispatch_state.h"

enum { CLAIMS_PER_SEAT = 2 }; /* leases of the index that wait to be confirmed */
static const int64_t TELL_REMOTE_NS = 1000000000;
static const int64_t SUPERVISOR_NS =
    3000000000; /* to start another worker, which says how this died */
/* A worker keeps its own time limit (time_limit.h). This is for one that cannot: stopped by
 * somebody, or stuck in the kernel; no sample is to blame. */
static const double PATIENCE = 1.25;
static const int64_t PATIENCE_NS = 500000000;
static const int64_t FRESH_PAUSE_NS = 2000000000; /* one that does not come back by then is lost */

/* The death of a process elsewhere shows only in that nothing can be sent to it. True if its seat
 * is removed. */
static bool is_lost(dispatch *d, worker_seat *w, int64_t now)
{
    if (w->lost_ns == 0 && now - w->told_ns > TELL_REMOTE_NS) {
        w->told_ns = now;
        if (seat_send_terms(d, &w->peer) != ST_OK)
            w->lost_ns = now;
    }
    if (w->lost_ns == 0 || (w->work && w->supervisor[0] && now - w->lost_ns < SUPERVISOR_NS))
        return false;
    seat_gone(d, w, LOSS_OUTSIDE, "connection lost");
    return true;
}

void seats_check_time(dispatch *d, int64_t now)
{
    const int64_t limit = (int64_t)(d->c->prepd_sample_timeout * PATIENCE * 1e9) + PATIENCE_NS;
    for (worker_seat *w = d->seats, *next; w; w = next) {
        next = w->next;
        if (!w->local && is_lost(d, w, now))
            continue;
        if (!w->work || w->lost_ns || now - w->since_ns <= limit)
            continue;
        if (w->local)
            local_kill(d, w->pid);
        else
            breach_note(&d->breaches, w->from, now);
        seat_gone(d, w, LOSS_OUTSIDE, "hangs beyond its own time limit");
    }
}

/* Records wait for a second worker faster than those that may confirm them do so: who has made them
 * waits too, since each of them is looked at whenever work is given. */
static bool claims_pile_up(const dispatch *d)
{
    int64_t room = CLAIMS_PER_SEAT * (int64_t)d->n_seats;
    for (const lease *l = d->book.lost; l && room > 0; l = l->next)
        room -= l->n_claims > 0;
    return room <= 0;
}

/* New work in turn from every index being built and every consumer with credit. */
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
        consumer_seat *s = d->consumer_seats;
        for (uint32_t k = 2; s && k < place; k++)
            s = s->next;
        if (s)
            TRY(consumer_produce(d, s, out));
    }
    return ST_OK;
}

/* Whether a link is slower than the workers; on ipc there is none. */
static bool press_row(dispatch *d, const worker_seat *w, const lease *l)
{
    if (l->kind != LEASE_ROW || wire_is_ipc(d->c->prepd_endpoint))
        return false;
    consumer_seat *s = l->owner;
    s->press = compress_for_consumer(s->press, s->unreturned, s->credit,
                                     s->n_slots > 0 ? s->reserved / s->n_slots : 0);
    const bool press = s->press || (!w->local && compress_for_link(&w->link));
    d->counts.pressed += press;
    return press;
}

/* A worker that is sent files waits while those under way hold too much; one lease may always go.
 */
static bool may_ship(const dispatch *d, const worker_seat *w)
{
    int64_t under_way = 0;
    for (const worker_seat *o = d->seats; w->ship && o; o = o->next)
        under_way += o->shipped;
    return under_way < d->c->prepd_ship_bytes;
}

/* What it does now, or next if it is at work. False if there was nothing to give. */
static bool give_work(dispatch *d, worker_seat *w)
{
    char *json = NULL;
    size_t size;
    bool any_out = false;
    wire_msg *files = NULL;
    for (const worker_seat *o = d->seats; o && !any_out; o = o->next)
        any_out = o->work != NULL;
    const claim_asker asker = {d, w};
    lease *l = lease_book_take_if(&d->book, w->fresh, claim_may_take, &asker);
    if (!l && (d->draining || produce(d, &l) != ST_OK)) {
        if (!d->draining)
            dispatch_fail(d, status_last()->code);
        return false;
    }
    if (!l)
        return false;
    if ((w->ship && wire_msg_new(&files) != ST_OK) ||
        payload_lease(d, l, press_row(d, w, l), files, &json, &size) != ST_OK) {
        wire_msg_free(&files);
        lease_book_return(&d->book, l);
        dispatch_fail(d, status_last()->code);
        return false;
    }
    w->shipped = files ? (int64_t)wire_msg_bytes(files) : 0;
    d->counts.shipped += (uint64_t)w->shipped;
    if (w->work) {
        w->ahead = l;
        d->counts.leases_ahead++;
    } else {
        w->work = l;
        w->unbegun = true;
        w->since_ns = w->leased_ns = clock_ns();
    }
    if (!any_out)
        d->answered_ns = w->since_ns;
    status st = wire_send_json_with(d->workers, &w->peer, KIND_LEASE, l->number, json, size, files);
    wire_msg_free(&files);
    free(json);
    if (st != ST_OK)
        seat_gone(d, w, LOSS_OUTSIDE, "unreachable");
    return true;
}

static bool is_held(const dispatch *d, const worker_seat *w, int64_t now)
{
    return !w->local && breach_is_held(&d->breaches, w->from, now);
}

static bool any_unheld(const dispatch *d, int64_t now)
{
    const worker_seat *w = d->seats;
    while (w && (!w->proved || is_held(d, w, now)))
        w = w->next;
    return w != NULL;
}

/* Workers at an address that broke the protocol again and again get no work while others are here,
 * even busy ones: what is late waits for workers that do it. */
static worker_seat *longest_idle(dispatch *d, bool only_fresh)
{
    const int64_t now = clock_ns();
    const bool others = any_unheld(d, now);
    worker_seat *best = NULL;
    for (worker_seat *w = d->seats; w; w = w->next)
        if (!w->work && w->proved && (w->fresh || !only_fresh) &&
            (!best || w->since_ns < best->since_ns) && may_ship(d, w) &&
            !(others && is_held(d, w, now)))
            best = w;
    return best;
}

/* A sample to be tried alone needs a worker without a past: one idle worker starts anew, and until
 * it had the time to come back no second one is asked. */
static void make_one_fresh(dispatch *d)
{
    int64_t now = clock_ns();
    worker_seat *w = longest_idle(d, false);
    if (!w || now - d->retired_ns < FRESH_PAUSE_NS)
        return;
    d->retired_ns = now;
    seat_retire(d, w, true);
}

/* While a worker does the last item of a row it is sent its next lease, and goes on at once instead
 * of waiting until its row is taken, sent on and answered (a row of 23 MB: 60 ms to make, 25 to 70
 * to hand over). Not earlier, so that no row waits behind another while some worker is idle. Not
 * while lost leases wait: those begin in idle workers, whose death says whose fault it was. Not for
 * workers elsewhere: from how long their rows take to come the need to compress is told, and that
 * shows only in one that waits. */
static void give_ahead(dispatch *d)
{
    for (worker_seat *w = d->seats, *next; w && !d->book.lost && !d->stopping; w = next) {
        next = w->next;
        if (w->local && w->work && !w->ahead && w->last_item && !local_is_leaving(d, w->pid) &&
            !give_work(d, w))
            return;
    }
}

/* Leases that the worker that was asked first may not have: claims of its own. */
static void give_claims(dispatch *d)
{
    const int64_t now = clock_ns();
    const bool others = any_unheld(d, now);
    claims_want_local(d);
    for (worker_seat *w = d->seats, *next; w && d->book.lost && !d->stopping; w = next) {
        next = w->next;
        const claim_asker asker = {d, w};
        if (!w->work && w->proved && may_ship(d, w) && !(w->local && local_is_leaving(d, w->pid)) &&
            !(others && is_held(d, w, now)) &&
            lease_book_has(&d->book, w->fresh, claim_may_take, &asker) && !give_work(d, w))
            return;
    }
}

void seats_schedule(dispatch *d)
{
    for (worker_seat *w = d->seats, *next; w; w = next) {
        next = w->next;
        if (!w->work && w->local && local_is_leaving(d, w->pid))
            seat_retire(d, w, false);
    }
    while (!d->stopping) {
        bool solo = lease_book_wants_fresh(&d->book);
        worker_seat *w = solo ? longest_idle(d, true) : NULL;
        if (solo && !w)
            make_one_fresh(d);
        if (!w)
            w = longest_idle(d, false);
        if (!w)
            break;
        if (!give_work(d, w)) {
            give_claims(d);
            return;
        }
    }
    give_ahead(d);
}
