/* SPDX-License-Identifier: Apache-2.0 */
/* peer_messages.c: gives each message of a peer to the file that handles it.
 *
 * Every lease ends in exactly one answer (ROW, RECORDS, FAILED) or in the loss of its worker. A
 * message from a worker without a seat or without a lease is late and is dropped, since the lease
 * has been given again by then. */
#include "prepd/serve/core/consumers/core_consumers.h"
#include "prepd/serve/core/workers/core_workers.h"
#include "prepd/serve/core/decisions/core_decisions.h"
#include "prepd/serve/core/turn/operator_commands.h"
#include "prepd/serve/core/state/hello.h"

/* --- consumers --- */

static status greet(dispatch *state, const wire_peer *from, const json_value *said,
                    const char *name)
{
    TRY(wire_may(from, WIRE_ROWS, name));
    if (state->draining)
        return FAIL(ST_UNAVAILABLE, "the daemon is being drained");
    return consumer_hello(state, from, said, name);
}

static status handle_consumer(dispatch *state, const wire_peer *from, wire_msg *message,
                              const char *name)
{
    frame head;
    json_value *said = NULL;
    status st = ST_OK;
    consumer_seat *consumer = consumer_find(state, from);
    TRY(wire_read_json(message, name, &head, &said));
    if (head.kind == KIND_HELLO) {
        st = greet(state, from, said, name);
    } else if (head.kind == KIND_CREDIT && consumer) {
        st = credit_take(said, name, &consumer->credit, &consumer->unreturned);
    } else if (head.kind == KIND_REFUSE && consumer) {
        st = refusal_take(state, consumer, said, name);
    } else if (head.kind == KIND_BYE || (head.kind == KIND_ERROR && consumer)) {
        if (consumer)
            consumer_close(state, consumer, NULL);
    } else if (head.kind != KIND_CREDIT) {
        st = hello_is_other(name, head.kind);
    } else {
        st = hello_is_missing(name);
    }
    json_free(&said);
    return st;
}

/* A consumer whose message is wrong is removed. */
static void refuse_consumer(dispatch *state, const wire_peer *from, status st)
{
    peer_limits_refuse(&state->peer_limits, &state->outside, DOOR_CONSUMERS, from, "consumer", st);
    consumer_seat *consumer = consumer_find(state, from);
    if (consumer)
        consumer_close(state, consumer, NULL);
}

/* --- workers --- */

/* The worker has begun its work, so what it dies of from now on may be a sample's doing. */
static void begun(dispatch *state, worker_seat *worker)
{
    worker->begun = true;
    local_begun(state, worker->local ? worker->pid : 0);
}

/* The worker cannot continue and says why. If it has not begun any work, no sample is to blame: the
 * reason is its model folder, say, or its memory. */
static void give_up(dispatch *state, worker_seat *worker, const json_value *said, const char *name)
{
    const status code = wire_error(said, name);
    const char *why = json_text(json_find(said, "message"), "no reason given");
    if (!worker->begun && worker->local && FAIL(code, "workers cannot begin: %s", why) == code)
        local_note_cause(state, worker->pid);
    seat_gone(state, worker, worker->begun ? LOSS_CRASH : LOSS_OUTSIDE, why);
}

/* The message is late, or from a peer without a seat. Its lease has been given again; it may join
 * again. */
static status send_late(dispatch *state, const wire_peer *from)
{
    seat_send_bye(state, from, BYE_AGAIN);
    return ST_OK;
}

/* What a worker says whose lease was given to another, because it took too long. Once it has
 * answered it starts anew; then its connection ends, and its seat with it. */
static status handle_late(dispatch *state, const worker_seat *worker, const frame *head)
{
    if (head->kind != KIND_ON)
        seat_send_bye(state, &worker->peer, BYE_AGAIN);
    return ST_OK;
}

/* JOIN, of a worker or of a supervisor that says what it keeps. */
static status let_join(dispatch *state, const wire_peer *from, const char *name,
                       const json_value *said)
{
    TRY(wire_may(from, WIRE_WORK, name));
    return json_find(said, "keeps") ? supervisor_note(state, from, name)
                                    : seat_join(state, from, name, said);
}

static status handle_worker(dispatch *state, const wire_peer *from, wire_msg *message,
                            const char *name)
{
    frame head;
    json_value *said = NULL;
    worker_seat *worker = seat_find(state, from);
    TRY(frame_decode(wire_msg_part(message, 0), name, &head));
    if (worker)
        worker->heard_ns = state->now_ns;
    if (worker && worker->late && head.kind != KIND_BYE && head.kind != KIND_ERROR)
        return handle_late(state, worker, &head);
    if (worker && !worker->begun &&
        (head.kind == KIND_ROW || head.kind == KIND_ON || head.kind == KIND_RECORDS))
        begun(state, worker);
    if (head.kind == KIND_ROW)
        return worker ? answer_row(state, worker, &head, message, name) : send_late(state, from);
    TRY(wire_read_json(message, name, &head, &said));
    status st = ST_OK;
    if (head.kind == KIND_JOIN)
        st = let_join(state, from, name, said);
    else if (head.kind == KIND_HELLO)
        st = FAIL_IN(ST_PROTOCOL, name,
                     "a worker does not send hello. This is the endpoint of workers; trainers "
                     "connect to prepd.endpoint itself");
    else if (!worker)
        st = head.kind == KIND_RECORDS || head.kind == KIND_FAILED ? send_late(state, from) : ST_OK;
    else if (worker->owes && (head.kind == KIND_RECORDS || head.kind == KIND_FAILED))
        worker->owes = false; /* what was taken from it */
    else if (head.kind == KIND_ON)
        st = answer_on(state, worker, &head, said, name);
    else if (head.kind == KIND_RECORDS)
        st = answer_records(state, worker, &head, said, name);
    else if (head.kind == KIND_FAILED)
        st = answer_failed(state, worker, &head, said, name);
    else if (head.kind == KIND_BYE)
        seat_left(state, worker, LOSS_OUTSIDE, "left");
    else if (head.kind == KIND_ERROR)
        give_up(state, worker, said, name);
    else
        st = FAIL_IN(ST_PROTOCOL, name, "a worker does not send %s", frame_kind_name(head.kind));
    json_free(&said);
    return st;
}

/* Acts on the failure of a worker's message, which is the worker's fault, or its end. */
static void refuse_worker(dispatch *state, const wire_peer *from, status st)
{
    worker_seat *worker = seat_find(state, from);
    if (worker && st == ST_UNAVAILABLE) {
        seat_unreachable(worker);
        return;
    }
    if (st == ST_NO_MEMORY) { /* the daemon's own want, which is no breach */
        core_warn(state, "worker not heard: %s", status_text());
        if (worker) { /* a supervisor would leave for good, and says so again anyway */
            seat_send_bye(state, from, BYE_AGAIN);
            seat_gone(state, worker, LOSS_OUTSIDE, "no memory to read what it said");
        }
        return;
    }
    peer_limits_refuse(&state->peer_limits, &state->outside, DOOR_WORKERS, from, "worker", st);
    if (worker)
        seat_dismiss(state, worker, "broke the protocol");
}

/* --- all --- */

void peer_message(dispatch *state, door at, const wire_peer *from, wire_msg *message)
{
    char name[WIRE_PEER_TEXT];
    status st;
    wire_peer_print(from, name);
    state->peer_limits.reading = from;
    if (at == DOOR_CONSUMERS) {
        st = handle_consumer(state, from, message, name);
        if (st != ST_OK)
            refuse_consumer(state, from, st);
    } else if (at == DOOR_WORKERS) {
        st = handle_worker(state, from, message, name);
        if (st != ST_OK && !state->stopping)
            refuse_worker(state, from, st);
    } else {
        st = operator_command(state, from, message, name);
        if (st != ST_OK)
            peer_limits_refuse(&state->peer_limits, &state->outside, at, from, "command", st);
    }
    state->peer_limits.reading = NULL;
}

void message_refused(dispatch *state, door at, const wire_peer *from, status st)
{
    state->peer_limits.reading = from;
    peer_limits_refuse(&state->peer_limits, &state->outside, at, from, "message", st);
    state->peer_limits.reading = NULL;
}
