/* client.c: the next row, from a daemon or from a recording; `record` says which a client has. */
#include "proto/client.h"

#include <stdio.h>

#include "proto/client_parts.h"

const char *client_welcome(const client *consumer)
{
    return consumer->record ? record_welcome(consumer->record) : consumer->welcome;
}

int64_t client_rows(const client *consumer)
{
    return consumer->record ? (int64_t)record_rows(consumer->record) : -1;
}

int64_t client_left_over(const client *consumer)
{
    return consumer->left_over;
}

/* Gives back the credit of a row that was taken. A daemon that has just left is noticed by the next
 * receive instead, after the rows that had arrived. */
static status return_credit(client *consumer, const wire_msg *taken)
{
    char json[48];
    int size = snprintf(json, sizeof json, "{\"bytes\":%zu}", wire_msg_bytes(taken));
    status st = wire_send_json(consumer->socket, NULL, KIND_CREDIT, 0, json, (size_t)size);
    return st == ST_UNAVAILABLE ? ST_OK : st;
}

void client_interrupt(client *consumer)
{
    atomic_store(&consumer->interrupted, true);
}

static status next_received(client *consumer, wire_msg *raw, frame *out_head)
{
    frame head;
    const int timeout_ms = consumer->hello.timeout_ms;
    status st = consumer->socket ? client_receive(consumer, raw, timeout_ms, false)
                                 : FAIL(ST_UNAVAILABLE, "not connected to %s", consumer->name);
    if (st == ST_TIMEOUT)
        return FAIL(ST_TIMEOUT, "no row came from %s for %.1f s", consumer->name, timeout_ms / 1e3);
    TRY(st);
    TRY(frame_decode(wire_msg_part(raw, 0), consumer->name, &head));
    switch (head.kind) {
    case KIND_ROW:
        TRY(row_order_take(&consumer->order, consumer->name, head.row));
        TRY(return_credit(consumer, raw));
        *out_head = head;
        return ST_OK;
    case KIND_END:
        consumer->ended = true;
        return ST_END;
    case KIND_ERROR:
        return client_read_refusal(consumer, raw);
    default:
        return FAIL_IN(ST_PROTOCOL, consumer->name,
                       "a message of kind %s came where a row was expected",
                       frame_kind_name(head.kind));
    }
}

status client_next_raw(client *consumer, wire_msg *raw, frame *out_head)
{
    frame head;
    if (consumer->ended)
        return ST_END;
    TRY(consumer->record ? client_next_recorded(consumer, raw, &head)
                         : next_received(consumer, raw, &head));
    if (out_head)
        *out_head = head;
    return ST_OK;
}

/* A row that came from a daemon of this version must have a tag. */
static status check_tagged(const client *consumer, const wire_msg *message, const frame *head)
{
    return consumer->record || !consumer->tags ||
                   wire_msg_parts(message) == 3 + (size_t)head->n_images
               ? ST_OK
               : FAIL_IN(ST_PROTOCOL, consumer->name, "row %llu came without a tag",
                         (unsigned long long)head->row);
}

/* Takes the next row, and again until one is what its tag says. */
static status next_good(client *consumer, arena *memory, row *out, frame *out_head)
{
    frame head;
    for (;;) {
        TRY(client_next_raw(consumer, consumer->scratch, &head));
        TRY(check_tagged(consumer, consumer->scratch, &head));
        status st =
            codec_decode(consumer->codec, consumer->scratch, consumer->name, memory, out, out_head);
        if (st == ST_OK && !consumer->record)
            st = client_keep_place(consumer, out);
        if (st != ST_PROTOCOL || consumer->record || !consumer->tags)
            return st;
        TRY(client_refuse_row(consumer, head.row));
    }
}

status client_next(client *consumer, arena *memory, row *out, frame *out_head, wire_msg *raw)
{
    TRY(next_good(consumer, memory, out, out_head));
    if (raw) {
        wire_msg_clear(raw);
        TRY(wire_msg_move(raw, consumer->scratch));
    } else {
        wire_msg_clear(consumer->scratch);
    }
    return ST_OK;
}
