/* worker_messages.c: gives each message from the workers' endpoint to the file that handles it.
 *
 * Every lease ends in exactly one answer (ROW, RECORDS, FAILED) or in the loss of its worker. A
 * message from a worker without a seat or without a lease is late and is dropped, since the lease
 * has been given again by then. */

#include "common/base/clock.h"
#include "common/program/log.h"
#include "prepd/serve/dispatch_state.h"

/* The worker has begun its work, so what it dies of from now on may be a sample's doing. */
static void begun(dispatch *d, worker_seat *worker)
{
    worker->begun = true;
    local_begun(d, worker->local ? worker->pid : 0);
}

/* The worker left between two leases. A lease that was on its way to it was not begun, so it does
 * not count as lost. */
static void left(dispatch *d, worker_seat *worker)
{
    if (worker->unbegun) {
        seat_give_back(d, worker->work);
        worker->work = NULL;
    }
    seat_gone(d, worker, LOSS_OUTSIDE, "left");
}

/* The worker cannot continue and says why. If it has not begun any work, no sample is to blame: the
 * reason is its model folder, say, or its memory. */
static void give_up(dispatch *d, worker_seat *worker, const json_value *said, const char *name)
{
    const status code = wire_error(said, name);
    const char *why = json_text(json_find(said, "message"), "no reason given");
    if (!worker->begun && worker->local && FAIL(code, "workers cannot begin: %s", why) == code)
        local_said_why(d, worker->pid);
    seat_gone(d, worker, worker->begun ? LOSS_CRASH : LOSS_OUTSIDE, why);
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

static status seat_handle(dispatch *d, const wire_peer *from, wire_msg *message, const char *name)
{
    frame head;
    json_value *said = NULL;
    worker_seat *worker = seat_find(d, from);
    TRY(frame_decode(wire_msg_part(message, 0), name, &head));
    if (worker)
        worker->heard_ns = clock_ns();
    if (worker && !worker->begun &&
        (head.kind == KIND_ROW || head.kind == KIND_ON || head.kind == KIND_RECORDS))
        begun(d, worker);
    if (head.kind == KIND_ROW)
        return worker ? answer_row(d, worker, &head, message, name) : send_away(d, from);
    TRY(wire_read_json(message, name, &head, &said));
    status st = ST_OK;
    if (head.kind == KIND_JOIN && json_find(said, "keeps"))
        st = supervisor_heard(d, from, name);
    else if (head.kind == KIND_JOIN)
        st = seat_join(d, from, name, said);
    else if (head.kind == KIND_HELLO)
        st = FAIL_IN(ST_PROTOCOL, name,
                     "a worker does not send hello. This is the endpoint of workers; trainers "
                     "connect to prepd.endpoint itself");
    else if (!worker)
        st = head.kind == KIND_RECORDS || head.kind == KIND_FAILED ? send_away(d, from) : ST_OK;
    else if (head.kind == KIND_ON)
        st = answer_on(d, worker, &head, said, name);
    else if (head.kind == KIND_RECORDS)
        st = answer_records(d, worker, &head, said, name);
    else if (head.kind == KIND_FAILED)
        st = answer_failed(d, worker, &head, said, name);
    else if (head.kind == KIND_BYE)
        left(d, worker);
    else if (head.kind == KIND_ERROR)
        give_up(d, worker, said, name);
    else
        st = FAIL_IN(ST_PROTOCOL, name, "a worker does not send %s", frame_kind_name(head.kind));
    json_free(&said);
    return st;
}

/* Dismisses a worker that broke the protocol. Its lease is given again and no sample is blamed,
 * however often this happens, since such a worker proves nothing. A local worker is killed as well.
 */
static void dismiss(dispatch *d, worker_seat *worker)
{
    if (worker->local)
        local_kill(d, worker->pid);
    else
        breach_note(&d->breaches, worker->from, clock_ns());
    seat_gone(d, worker, LOSS_BREACH, "broke the protocol");
}

void seat_message(dispatch *d, const wire_peer *from, wire_msg *message)
{
    char name[WIRE_PEER_TEXT];
    wire_peer_print(from, name);
    status st = seat_handle(d, from, message, name);
    if (st == ST_OK || d->stopping)
        return;
    worker_seat *worker = seat_find(d, from);
    if (worker && st == ST_UNAVAILABLE) {
        seat_unreachable(worker);
        return;
    }
    peer_limits_refuse(&d->peer_limits, d->workers, from, "worker", st);
    if (worker)
        dismiss(d, worker);
}

static void from_worker(void *d, const wire_peer *from, wire_msg *message)
{
    seat_message(d, from, message);
}

status seats_read(dispatch *d)
{
    return peer_limits_read(&d->peer_limits, d->workers, from_worker, d);
}
