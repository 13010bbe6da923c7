/* client_hello.c: the message with which a client asks for a stream. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/client_parts.h"

static void put_json_or_null(json_writer *writer, const char *key, const char *json)
{
    json_put_key(writer, key);
    if (json && json[0])
        json_put_raw(writer, json, strlen(json));
    else
        json_put_null(writer);
}

/* Writes where the stream is to go on, and what is known of bad samples. An earlier cursor's list
 * becomes part of that. *out_bytes is the size of the list. */
static status put_place(json_writer *writer, client *consumer, size_t *out_bytes)
{
    const char *given = consumer->hello.cursor;
    json_value *cursor = NULL;
    char *list = NULL;
    *out_bytes = 0;
    if (given && given[0]) {
        TRY(json_parse(given, strlen(given), "the cursor", &cursor));
        status st = bad_samples_read_cursor(&consumer->known, cursor, "the cursor");
        json_put_key(writer, "cursor");
        bad_samples_put_cursor(cursor, writer);
        json_free(&cursor);
        TRY(st);
    }
    TRY(bad_samples_write(&consumer->known, &list));
    if (list[0])
        put_json_or_null(writer, "quarantine", list);
    *out_bytes = strlen(list);
    free(list);
    return ST_OK;
}

status client_send_hello(client *consumer)
{
    const client_options *options = &consumer->hello;
    json_writer writer;
    char *text = NULL, program[128];
    size_t size, list_bytes;
    snprintf(program, sizeof program, "%s %s", program_invocation_short_name, TESSERA_VERSION);
    json_writer_init(&writer);
    json_begin_object(&writer);
    json_put_key_int(&writer, "version", SESSION_VERSION);
    json_put_key_cstr(&writer, "program", program);
    json_put_key_cstr(&writer, "stream", options->stream);
    put_json_or_null(&writer, "options", options->stream_options);
    status st = put_place(&writer, consumer, &list_bytes);
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
        st = FAIL(
            ST_BAD_INPUT,
            "HELLO has %zu bytes, %zu of them for %lld bad samples, but %s accepts %d: shorten "
            "the options of the stream, or " BAD_SAMPLES_MEND,
            size, list_bytes, (long long)consumer->known.n, consumer->name, HELLO_BYTES);
    if (st == ST_OK)
        st = wire_send_json(consumer->socket, NULL, KIND_HELLO, 0, text, size);
    free(text);
    json_writer_done(&writer);
    return st;
}
