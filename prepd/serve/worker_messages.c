/* worker_messages.c: gives each message from the workers' endpoint to the file that handles it.
 *
 * Every lease ends in exactly one answer (ROW, RECORDS, FAILED) or in the loss of its worker. A
 * message from a worker without a seat or without a lease is late and is dropped, since the lease
 * has been given again by then. */

#include "common/base/clock.h"
#include "common/program/log.h"
#include "prepd/serve/dispatch_state.h"

/* The worker has begun its work, so what it dies of from now on may be a sample's doing. */
static void begun(dispatch *d, worker_seat *w)
{
    w->begun = true;
    local_begun(d, w->local ? w->pid : 0);
}

/* The worker left between two leases. A lease that was on its way to it was not begun, so it does
 * not count as lost. */
static void left(dispatch *d, worker_seat *w)
{
    if (w->unbegun) {
        seat_give_back(d, w->work);
        w->work = NULL;
    }
    seat_gone(d, w, LOSS_OUTSIDE, "left");
}

/* The worker cannot continue and says why. If it has not begun any work, no sample is to blame: the
 * reason is its model folder, say, or its memory. */
static void give_up(dispatch *d, worker_seat *w, const json_value *v, const char *name)
{
    const status code = wire_error(v, name);
    const char *why = json_text(json_find(v, "message"), "no reason given");
    if (!w->begun && w->local && FAIL(code, "workers cannot begin: %s", why) == code)
        local_said_why(d, w->pid);
    seat_gone(d, w, w->begun ? LOSS_CRASH : LOSS_OUTSIDE, why);
}

/* The message is late, or from a peer without a seat. Its lease has been given again; it may join
 * anew. */
static status send_away(dispatch *d, const wire_peer *from)
{
    static const char json[] = "{\"again\":true}";
    if (wire_send_json(d->workers, from, KIND_BYE, 0, json, sizeof(json) - 1) != ST_OK)
        log_debug("late worker could not be told: %s", status_text());
    return ST_OK;
}

static status seat_handle(dispatch *d, const wire_peer *from, wire_msg *m, const char *name)
{
    frame head;
    json_value *v = NULL;
    worker_seat *w = seat_find(d, from);
    TRY(frame_decode(wire_msg_part(m, 0), name, &head));
    if (w)
        w->heard_ns = clock_ns();
    if (w && !w->begun &&
        (head.kind == KIND_ROW || head.kind == KIND_ON || head.kind == KIND_RECORDS))
        begun(d, w);
    if (head.kind == KIND_ROW)
        return w ? answer_row(d, w, &head, m, name) : send_away(d, from);
    TRY(wire_read_json(m, name, &head, &v));
    status st = ST_OK;
    if (head.kind == KIND_JOIN && json_find(v, "keeps"))
        st = supervisor_heard(d, from, name);
    else if (head.kind == KIND_JOIN)
        st = seat_join(d, from, name, v);
    else if (head.kind == KIND_HELLO)
        st = FAIL_IN(ST_PROTOCOL, name,
                     "a worker does not send hello. This is the endpoint of workers; trainers "
                     "connect to prepd.endpoint itself");
    else if (!w)
        st = head.kind == KIND_RECORDS || head.kind == KIND_FAILED ? send_away(d, from) : ST_OK;
    else if (head.kind == KIND_ON)
        st = answer_on(d, w, &head, v, name);
    else if (head.kind == KIND_RECORDS)
        st = answer_records(d, w, &head, v, name);
    else if (head.kind == KIND_FAILED)
        st = answer_failed(d, w, &head, v, name);
    else if (head.kind == KIND_BYE)
        left(d, w);
    else if (head.kind == KIND_ERROR)
        give_up(d, w, v, name);
    else
        st = FAIL_IN(ST_PROTOCOL, name, "a worker does not send %s", frame_kind_name(head.kind));
    json_free(&v);
    return st;
}

/* Dismisses a worker that broke the protocol. Its lease is given again and no sample is blamed,
 * however often this happens, since such a worker proves nothing. A local worker is killed as well.
 */
static void dismiss(dispatch *d, worker_seat *w)
{
    if (w->local)
        local_kill(d, w->pid);
    else
        breach_note(&d->breaches, w->from, clock_ns());
    seat_gone(d, w, LOSS_BREACH, "broke the protocol");
}

void seat_message(dispatch *d, const wire_peer *from, wire_msg *m)
{
    char name[WIRE_PEER_TEXT];
    wire_peer_print(from, name);
    status st = seat_handle(d, from, m, name);
    if (st == ST_OK || d->stopping)
        return;
    worker_seat *w = seat_find(d, from);
    if (w && st == ST_UNAVAILABLE) {
        seat_unreachable(w);
        return;
    }
    peer_limits_refuse(&d->peer_limits, d->workers, from, "worker", st);
    if (w)
        dismiss(d, w);
}

static void from_worker(void *d, const wire_peer *from, wire_msg *m)
{
    seat_message(d, from, m);
}

status seats_read(dispatch *d)
{
    return peer_limits_read(&d->peer_limits, d->workers, from_worker, d);
}
