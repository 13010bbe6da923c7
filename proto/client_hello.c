/* client_hello.c: the message with which a client asks for a stream. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/client_parts.h"
#include "proto/decisions.h"

static void put_json_or_null(json_writer *writer, const char *key, const char *json)
{
    json_put_key(writer, key);
    if (json && json[0])
        json_put_raw(writer, json, strlen(json));
    else
        json_put_null(writer);
}

/* The longest part of HELLO, which is named where HELLO is too long. */
typedef struct long_part {
    const char *what, *mend;
    size_t bytes;
} long_part;

static void note_part(long_part *longest, const char *what, const char *mend, const char *text)
{
    if (text && strlen(text) > longest->bytes)
        *longest = (long_part){what, mend, strlen(text)};
}

/* Writes where the stream is to go on, and under which list. The list and that of the cursor become
 * one, and the cursor is sent without its own: otherwise a long list would be in HELLO twice.
 * *out_listed is its length. */
static status put_place(json_writer *writer, const client_options *options, int64_t *out_listed,
                        long_part *longest)
{
    static const char mend[] = "repair the data and raise data.generation";
    decisions list = {0};
    *out_listed = 0;
    char *cursor = NULL, *text = NULL;
    const char *given = options->cursor ? options->cursor : "";
    if (!options->quarantine || !options->quarantine[0]) {
        put_json_or_null(writer, "cursor", given);
        note_part(longest, "the cursor with its list of bad samples", mend, given);
        return ST_OK;
    }
    status st = decisions_read(&list, options->quarantine, DECISION_ROW_UNKNOWN, "quarantine");
    if (st == ST_OK)
        st = decisions_read_cursor(&list, given, "the cursor");
    if (st == ST_OK && given[0])
        st = decisions_cut_cursor(given, "the cursor", &cursor);
    if (st == ST_OK)
        st = decisions_write(&list, &text);
    if (st == ST_OK) {
        put_json_or_null(writer, "cursor", cursor);
        put_json_or_null(writer, "quarantine", text);
        note_part(longest, "the list of bad samples", mend, text);
        note_part(longest, "the cursor without its list", mend, cursor);
        *out_listed = list.n_entries;
    }
    decisions_done(&list);
    free(cursor);
    free(text);
    return st;
}

status client_send_hello(client *consumer)
{
    const client_options *options = &consumer->hello;
    json_writer writer;
    char *text = NULL, program[128];
    size_t size;
    long_part longest = {0};
    snprintf(program, sizeof program, "%s %s", program_invocation_short_name, TESSERA_VERSION);
    json_writer_init(&writer);
    json_begin_object(&writer);
    json_put_key_int(&writer, "version", SESSION_VERSION);
    json_put_key_cstr(&writer, "program", program);
    json_put_key_cstr(&writer, "stream", options->stream);
    put_json_or_null(&writer, "options", options->stream_options);
    note_part(&longest, "the options of the stream", "shorten them", options->stream_options);
    status st = put_place(&writer, options, &consumer->listed, &longest);
    json_put_key_int(&writer, "start_row", options->start_row);
    json_put_key_int(&writer, "rank", options->rank);
    json_put_key_int(&writer, "ranks", options->ranks);
    json_put_key_int(&writer, "credit_bytes", options->credit_bytes);
    json_put_key_bool(&writer, "rows_later", options->rows_later);
    json_put_key_bool(&writer, "prefixes", true); /* whoever reads rows here reads doc_prefix */
    if (options->report)
        json_put_key_bool(&writer, "report", true);
    if (options->run)
        json_put_key_cstr(&writer, "run", options->run);
    if (options->consumer)
        json_put_key_cstr(&writer, "consumer", options->consumer);
    json_end_object(&writer);
    if (st == ST_OK)
        st = json_writer_take(&writer, &text, &size);
    if (st == ST_OK && size > HELLO_BYTES) /* prepd would cut the connection without a reason */
        st = FAIL(ST_BAD_INPUT, "HELLO has %zu bytes, %zu of them %s, but %s accepts %d: %s", size,
                  longest.bytes, longest.what, consumer->name, HELLO_BYTES, longest.mend);
    if (st == ST_OK)
        st = wire_send_json(consumer->socket, NULL, KIND_HELLO, 0, text, size);
    free(text);
    json_writer_done(&writer);
    return st;
}
