/* client_welcome.c: what a daemon answers to HELLO, and whether that is the stream that was asked
 * for. */
#include <stdlib.h>
#include <string.h>

#include "proto/client_parts.h"

status client_read_refusal(const client *consumer, const wire_msg *message)
{
    frame head;
    json_value *value = NULL;
    TRY(wire_read_json(message, consumer->name, &head, &value));
    status st = wire_error(value, consumer->name);
    json_free(&value);
    return st == ST_STOPPED ? FAIL(ST_UNAVAILABLE, "%s", status_text()) : st;
}

/* Checks that a daemon which came back has the same stream as before. The number of rows may be
 * missing from either WELCOME (rows_later). */
static status same_stream(const client *consumer, const json_value *now)
{
    static const char *const number[] = {"rows", "seq_len", "token_budget", "patch_budget",
                                         "global_batch_size"};
    json_value *was = NULL;
    TRY(json_parse(consumer->welcome, strlen(consumer->welcome), "WELCOME", &was));
    const char *index[2] = {json_text(json_find(was, "index"), ""),
                            json_text(json_find(now, "index"), "")};
    status st = ST_OK;
    if (strcmp(index[0], index[1]) != 0)
        st = FAIL_IN(ST_CONFIG, consumer->name,
                     "the daemon came back with another data set: its index is %s, it was %s",
                     index[1], index[0]);
    for (size_t i = 0; i < sizeof number / sizeof *number && st == ST_OK; i++) {
        const int64_t before = json_int(json_find(was, number[i]), -1);
        const int64_t after = json_int(json_find(now, number[i]), -1);
        if (before != after && before >= 0 && after >= 0)
            st = FAIL_IN(ST_CONFIG, consumer->name,
                         "the daemon came back with another stream: its %s is %lld, it was %lld",
                         number[i], (long long)after, (long long)before);
    }
    json_free(&was);
    return st;
}

/* Keeps the first WELCOME, whose text the caller may hold; later ones are compared with it. */
static status keep_welcome(client *consumer, const json_value *value, span text)
{
    if (consumer->welcome)
        return same_stream(consumer, value);
    consumer->welcome = strndup((const char *)text.data, text.size);
    return consumer->welcome ? ST_OK : FAIL(ST_NO_MEMORY, "no memory for a WELCOME");
}

/* The number of the row that HELLO asks for. For a recording, start_row counts from its first. */
static status asked_row(const client *consumer, const json_value *welcome, uint64_t *out)
{
    const char *cursor = consumer->hello.cursor;
    json_value *value = NULL;
    int64_t at;
    if (!cursor || !cursor[0]) {
        const int64_t first = json_int(json_find(json_find(welcome, "recording"), "first"), 0);
        *out = (uint64_t)consumer->hello.start_row + (uint64_t)(first > 0 ? first : 0);
        return ST_OK;
    }
    TRY(json_parse(cursor, strlen(cursor), "the cursor", &value));
    status st = json_want_int(value, "row", "the cursor", &at);
    json_free(&value);
    if (st == ST_OK && at < 0)
        st = FAIL(ST_BAD_INPUT, "the cursor resumes at row %lld, which is below 0", (long long)at);
    if (st == ST_OK)
        *out = (uint64_t)at;
    return st;
}

static status begin_order(client *consumer, const json_value *welcome)
{
    uint64_t asked;
    TRY(asked_row(consumer, welcome, &asked));
    return row_order_begin(welcome, consumer->name, asked, consumer->hello.rank,
                           consumer->hello.ranks, &consumer->order);
}

/* The daemon answered HELLO with an error. If it cannot read our HELLO, it is of another version,
 * and an older one cannot say which version we need. */
static status refused_hello(const client *consumer)
{
    const status st = client_read_refusal(consumer, consumer->scratch);
    return st == ST_PROTOCOL
               ? FAIL(ST_PROTOCOL,
                      "%s. This program needs a daemon with protocol version %d: run both programs "
                      "of the same release",
                      status_text(), SESSION_VERSION)
               : st;
}

status client_take_welcome(client *consumer)
{
    frame head;
    json_value *value = NULL;
    TRY(frame_decode(wire_msg_part(consumer->scratch, 0), consumer->name, &head));
    if (head.kind == KIND_ERROR)
        return refused_hello(consumer);
    if (head.kind != KIND_WELCOME)
        return FAIL_IN(ST_PROTOCOL, consumer->name,
                       "the daemon answered hello with %s, expected welcome",
                       frame_kind_name(head.kind));
    TRY(wire_read_json(consumer->scratch, consumer->name, &head, &value));
    status st = begin_order(consumer, value);
    hash128 digest;
    if (hash_parse(json_text(json_find(value, "index"), ""), &digest))
        hash_print(digest, consumer->known.index);
    consumer->tags = json_int(json_find(value, "version"), 0) >= SESSION_TAGS;
    if (st == ST_OK)
        st = keep_welcome(consumer, value, wire_msg_part(consumer->scratch, 1));
    json_free(&value);
    return st;
}
