/* client_refuse.c: a row that is not what its tag says is refused, and asked for again. */
#include <stdlib.h>
#include <string.h>

#include "common/program/log.h"
#include "proto/client_parts.h"

status client_keep_place(client *consumer, const row *taken)
{
    /* Of the sample stream a row lists what the index refuses. */
    const bool keeps = strcmp(consumer->hello.stream, "sample") != 0;
    const char *cursor = taken->cursor, *list = keeps ? taken->quarantine : "";
    const size_t bytes = strlen(cursor) + 1;
    if (bytes > consumer->cursor_bytes) {
        char *at = (char *)realloc(consumer->cursor, 2 * bytes);
        if (!at)
            return FAIL(ST_NO_MEMORY, "no memory for a cursor of %zu bytes", bytes);
        consumer->cursor = at;
        consumer->cursor_bytes = 2 * bytes;
    }
    memcpy(consumer->cursor, cursor, bytes);
    return list[0] && strcmp(list, "[]") != 0
               ? bad_samples_read_text(&consumer->known, list, consumer->name)
               : ST_OK;
}

static status send_refuse(const client *consumer, uint64_t number)
{
    json_writer writer;
    char *text = NULL;
    size_t size;
    json_writer_init(&writer);
    json_begin_object(&writer);
    json_put_key_int(&writer, "row", (int64_t)number);
    json_put_key_cstr(&writer, "message", status_text());
    json_end_object(&writer);
    status st = json_writer_take(&writer, &text, &size);
    if (st == ST_OK)
        st = wire_send_json(consumer->socket, NULL, KIND_REFUSE, 0, text, size);
    free(text);
    json_writer_done(&writer);
    return st;
}

/* Waits until the daemon ends the session, dropping the rows that it had sent before. */
static status hear_end(client *consumer)
{
    frame head;
    for (;;) {
        wire_msg_clear(consumer->scratch);
        const status st =
            client_receive(consumer, consumer->scratch, consumer->hello.timeout_ms, false);
        if (st == ST_TIMEOUT)
            return FAIL(ST_TIMEOUT, "%s did not answer that a row was refused", consumer->name);
        TRY(st);
        TRY(frame_decode(wire_msg_part(consumer->scratch, 0), consumer->name, &head));
        if (head.kind == KIND_ERROR)
            return client_read_refusal(consumer, consumer->scratch);
    }
}

status client_refuse_row(client *consumer, uint64_t number)
{
    status st;
    log_warn("row %llu is refused and asked for again: %s", (unsigned long long)number,
             status_text());
    TRY(send_refuse(consumer, number));
    st = hear_end(consumer);
    if (st != ST_UNAVAILABLE)
        return st;
    st = client_rejoin(consumer, consumer->cursor, consumer->hello.timeout_ms);
    if (st != ST_TIMEOUT)
        return st;
    const status_note why = *status_last();
    client_hang_up(consumer);
    return FAIL(ST_UNAVAILABLE, "%s", why.message);
}
