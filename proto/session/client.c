/* SPDX-License-Identifier: Apache-2.0 */
/* client.c: a client's next row, from a daemon or from a recording; `record` says
 * which a client has. A row that is not what its tag says is refused, and asked for again. */
#include "proto/session/client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/program/log.h"
#include "proto/session/client_parts.h"

/* --- recordings --- */

/* Rows over all loops. */
static uint64_t rows_of(const record_reader *record, int64_t loops)
{
    const uint64_t rows = record_rows(record);
    uint64_t all;
    if (rows == 0)
        return 0;
    return loops == 0 || __builtin_mul_overflow(rows, (uint64_t)loops, &all) ? UINT64_MAX : all;
}

/* Finds where the rows end: after the last whole step, counted from the first row wanted. */
static status find_end(client *consumer, const replay_options *options)
{
    consumer->end = rows_of(consumer->record, options->loops);
    consumer->next = options->skip < consumer->end ? options->skip : consumer->end;
    if (options->step_rows < 1 || consumer->end == UINT64_MAX)
        return ST_OK;
    consumer->left_over =
        (int64_t)((consumer->end - consumer->next) % (uint64_t)options->step_rows);
    consumer->end -= (uint64_t)consumer->left_over;
    if (consumer->end == 0)
        return FAIL_IN(ST_BAD_INPUT, consumer->name,
                       "%lld rows are recorded here, but a step takes %lld "
                       "(training.global_batch_size): there is no whole step",
                       (long long)consumer->left_over, (long long)options->step_rows);
    return ST_OK;
}

status client_replay(const replay_options *options, client **out)
{
    client *consumer = NULL;
    status st;
    TRY(client_make(options->path, &consumer));
    TRY_OR(failed, record_open(options->path, &consumer->record));
    TRY_OR(failed, find_end(consumer, options));
    if (options->ranks > 1) {
        TRY_OR(failed, share_new(options, consumer->record, consumer->codec, consumer->end,
                                 &consumer->share));
        TRY_OR(failed, share_find(consumer->share, &consumer->next));
    }
    *out = consumer;
    return ST_OK;
failed:
    client_close(&consumer);
    return st;
}

/* Checks that row `index` of the file follows the one before. It may also be the first again, if
 * what was recorded was itself a recording, served in rounds. */
static status check_recorded(const client *consumer, uint64_t index, uint64_t number)
{
    frame before, first;
    if (index == 0)
        return ST_OK;
    TRY(record_head(consumer->record, index - 1, &before));
    if (number == before.row + 1)
        return ST_OK;
    TRY(record_head(consumer->record, 0, &first));
    return number == first.row
               ? ST_OK
               : FAIL_IN(ST_BAD_INPUT, consumer->name,
                         "row %llu comes after row %llu where row %llu was expected: the "
                         "recording is not of one stream",
                         (unsigned long long)number, (unsigned long long)before.row,
                         (unsigned long long)(before.row + 1));
}

static status next_recorded(client *consumer, wire_msg *raw, frame *out_head)
{
    if (consumer->next == consumer->end)
        return ST_END;
    const uint64_t i = consumer->next % record_rows(consumer->record);
    TRY(record_read(consumer->record, i, raw));
    TRY(frame_decode(wire_msg_part(raw, 0), consumer->name, out_head));
    TRY(check_recorded(consumer, i, out_head->row));
    consumer->next++;
    return consumer->share ? share_find(consumer->share, &consumer->next) : ST_OK;
}

/* --- rows --- */

static status keep_place(client *consumer, const row *taken)
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
static status wait_for_end(client *consumer)
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

static status refuse_row(client *consumer, uint64_t number)
{
    status st;
    log_warn("row %llu is refused and asked for again: %s", (unsigned long long)number,
             status_text());
    TRY(send_refuse(consumer, number));
    st = wait_for_end(consumer);
    if (st != ST_UNAVAILABLE)
        return st;
    st = client_rejoin(consumer, consumer->cursor, consumer->hello.timeout_ms);
    if (st != ST_TIMEOUT)
        return st;
    const status_note why = *status_last();
    client_hang_up(consumer);
    return FAIL(ST_UNAVAILABLE, "%s", why.message);
}

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
    TRY(consumer->record ? next_recorded(consumer, raw, &head)
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
            st = keep_place(consumer, out);
        if (st != ST_PROTOCOL || consumer->record || !consumer->tags)
            return st;
        TRY(refuse_row(consumer, head.row));
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
