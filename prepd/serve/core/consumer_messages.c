/* consumer_messages.c: gives each message from the consumers' endpoint to the file that handles
 * it. */
#include "prepd/serve/core/hello.h"
#include "prepd/serve/core/dispatch_state.h"

static status greet(dispatch *state, const wire_peer *from, const json_value *said,
                    const char *name)
{
    TRY(wire_may(from, WIRE_ROWS, name));
    if (state->draining)
        return FAIL(ST_UNAVAILABLE, "the daemon is being drained");
    return consumer_hello(state, from, said, name);
}

static status handle(dispatch *state, const wire_peer *from, wire_msg *message, const char *name)
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

/* Tells a consumer what is wrong with its message, and removes it. */
static void refuse_consumer(dispatch *state, const wire_peer *from, status st)
{
    peer_limits_refuse(&state->peer_limits, &state->outside, DOOR_CONSUMERS, from, "consumer", st);
    consumer_seat *consumer = consumer_find(state, from);
    if (consumer)
        consumer_close(state, consumer, NULL);
}

void consumer_message(dispatch *state, const wire_peer *from, wire_msg *message)
{
    char name[WIRE_PEER_TEXT];
    wire_peer_print(from, name);
    state->peer_limits.reading = from;
    const status st = handle(state, from, message, name);
    if (st != ST_OK)
        refuse_consumer(state, from, st);
    state->peer_limits.reading = NULL;
}
