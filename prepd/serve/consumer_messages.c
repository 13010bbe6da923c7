/* consumer_messages.c: gives each message from the consumers' endpoint to the file that handles it.
 */
#include "prepd/serve/hello.h"
#include "prepd/serve/dispatch_state.h"

static status handle(dispatch *d, const wire_peer *from, wire_msg *message, const char *name)
{
    frame head;
    json_value *said = NULL;
    status st = ST_OK;
    consumer_seat *consumer = consumer_find(d, from);
    TRY(wire_read_json(message, name, &head, &said));
    if (head.kind == KIND_HELLO) {
        st = d->draining ? FAIL(ST_UNAVAILABLE, "the daemon is being drained")
                         : consumer_hello(d, from, message, said, name);
    } else if (head.kind == KIND_CREDIT && consumer) {
        st = credit_take(said, name, &consumer->credit, &consumer->unreturned);
    } else if (head.kind == KIND_BYE || (head.kind == KIND_ERROR && consumer)) {
        if (consumer)
            consumer_close(d, consumer, NULL);
    } else if (head.kind != KIND_CREDIT) {
        st = hello_is_other(name, head.kind);
    } else {
        st = hello_is_missing(name);
    }
    json_free(&said);
    return st;
}

void consumer_message(dispatch *d, const wire_peer *from, wire_msg *message)
{
    char name[WIRE_PEER_TEXT];
    wire_peer_print(from, name);
    status st = handle(d, from, message, name);
    if (st == ST_OK)
        return;
    peer_limits_refuse(&d->peer_limits, d->consumers, from, "consumer", st);
    consumer_seat *consumer = consumer_find(d, from);
    if (consumer)
        consumer_close(d, consumer, NULL);
}
