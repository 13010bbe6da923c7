/* consumer_messages.c: gives each message from the consumers' endpoint to the file that handles it.
 */
#include "prepd/serve/hello.h"
#include "prepd/serve/dispatch_state.h"

static status handle(dispatch *d, const wire_peer *from, wire_msg *m, const char *name)
{
    frame head;
    json_value *v = NULL;
    status st = ST_OK;
    consumer_seat *s = consumer_find(d, from);
    TRY(wire_read_json(m, name, &head, &v));
    if (head.kind == KIND_HELLO) {
        st = d->draining ? FAIL(ST_UNAVAILABLE, "the daemon is being drained")
                         : consumer_hello(d, from, m, v, name);
    } else if (head.kind == KIND_CREDIT && s) {
        st = credit_take(v, name, &s->credit, &s->unreturned);
    } else if (head.kind == KIND_BYE || (head.kind == KIND_ERROR && s)) {
        if (s)
            consumer_close(d, s, NULL);
    } else if (head.kind != KIND_CREDIT) {
        st = hello_is_other(name, head.kind);
    } else {
        st = hello_is_missing(name);
    }
    json_free(&v);
    return st;
}

void consumer_message(dispatch *d, const wire_peer *from, wire_msg *m)
{
    char name[WIRE_PEER_TEXT];
    wire_peer_print(from, name);
    status st = handle(d, from, m, name);
    if (st == ST_OK)
        return;
    peer_limits_refuse(&d->peer_limits, d->consumers, from, "consumer", st);
    consumer_seat *s = consumer_find(d, from);
    if (s)
        consumer_close(d, s, NULL);
}
