/* SPDX-License-Identifier: Apache-2.0 */
/* client_session.c: a client's memory, and its session with a daemon: HELLO, with which it asks for a stream, what
 * the daemon answers and whether that is what was asked for, waiting, and coming back after a loss.
 */
#include "proto/session/client_parts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"

/* --- its memory --- */

status client_make(const char *name, client **out)
{
    client *consumer = calloc(1, sizeof *consumer);
    status st = ST_OK;
    if (!consumer || !(consumer->name = strdup(name))) {
        free(consumer);
        return FAIL(ST_NO_MEMORY, "no memory for a client");
    }
    TRY_OR(failed, codec_new(&consumer->codec));
    TRY_OR(failed, wire_msg_new(&consumer->scratch));
    *out = consumer;
    return ST_OK;
failed:
    client_close(&consumer);
    return st;
}

static void free_texts(client_options *options)
{
    const char *const text[] = {options->endpoint,       options->keys,   options->stream,
                                options->stream_options, options->cursor, options->run,
                                options->consumer};
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        free((char *)text[i]);
    memset(options, 0, sizeof *options);
}

/* Keeps the caller's options with copies of their texts. */
static status keep_options(client *consumer, const client_options *options)
{
    consumer->hello = *options;
    client_options *const hello = &consumer->hello;
    const char **const text[] = {&hello->endpoint,       &hello->keys,   &hello->stream,
                                 &hello->stream_options, &hello->cursor, &hello->run,
                                 &hello->consumer};
    bool all = true;
    hello->quarantine = NULL; /* it goes into consumer->known */
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        if (*text[i])
            all &= (*text[i] = strdup(*text[i])) != NULL;
    if (!all)
        return FAIL(ST_NO_MEMORY, "no memory for a client");
    return options->quarantine
               ? bad_samples_read_text(&consumer->known, options->quarantine, "quarantine")
               : ST_OK;
}

void client_hang_up(client *consumer)
{
    consumer->heard |= consumer->socket && wire_greeted(consumer->socket);
    wire_close(&consumer->socket);
    wire_free(&consumer->wire);
    consumer->joining = false;
}

void client_close(client **held)
{
    client *consumer = held ? *held : NULL;
    if (!consumer)
        return;
    /* Best effort: a daemon that has left needs no BYE, and the caller's status note must remain
     * the reason for which it gives up. */
    const status_note why = *status_last();
    if (consumer->socket && consumer->welcome &&
        wire_send_json(consumer->socket, NULL, KIND_BYE, 0, "{}", 2) != ST_OK)
        status_set(&why);
    client_hang_up(consumer);
    share_free(&consumer->share);
    record_close(&consumer->record);
    codec_free(&consumer->codec);
    wire_msg_free(&consumer->scratch);
    free_texts(&consumer->hello);
    bad_samples_done(&consumer->known);
    free(consumer->welcome);
    free(consumer->cursor);
    free(consumer->name);
    free(consumer);
    *held = NULL;
}

/* --- HELLO --- */

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

static status send_hello(client *consumer)
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

/* --- WELCOME --- */

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

static status take_welcome(client *consumer)
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
    consumer->tags = json_int(json_find(value, "version"), 0) >= SESSION_VERSION;
    if (st == ST_OK)
        st = keep_welcome(consumer, value, wire_msg_part(consumer->scratch, 1));
    json_free(&value);
    return st;
}

/* --- connections --- */

/* A sign of life: prepd is there but has nothing to send (CREDIT of 0 bytes). */
static bool is_sign_of_life(const wire_msg *message)
{
    frame head;
    return wire_msg_parts(message) == 2 &&
           frame_decode(wire_msg_part(message, 0), "", &head) == ST_OK && head.kind == KIND_CREDIT;
}

/* Why there is no WELCOME yet. The text is valid until the next failure is noted. */
static const char *silence(client *consumer)
{
    if (wire_greeted(consumer->socket))
        return "the daemon is there and is preparing the stream";
    if (wire_cut(consumer->socket))
        return "every connection there is closed at once: by a proxy without a daemon, or by a "
               "daemon that demands keys";
    return wire_listens(consumer->hello.endpoint) == ST_OK ? "nothing answers there"
                                                           : status_text();
}

static void report_waiting(client *consumer)
{
    enum { EVERY_S = 10 };
    const int64_t now = clock_ns();
    if (!consumer->hello.waiting || now < consumer->tell_ns)
        return;
    consumer->tell_ns = now + EVERY_S * INT64_C(1000000000);
    consumer->hello.waiting(consumer->hello.endpoint, (double)(now - consumer->wait_ns) * 1e-9,
                            silence(consumer));
}

status client_receive(client *consumer, wire_msg *raw, int timeout_ms, bool waits_on)
{
    enum { SLICE_MS = 100 };
    const int64_t time_ns = (int64_t)timeout_ms * 1000000;
    int64_t deadline = clock_ns() + time_ns;
    for (;;) {
        if (atomic_load(&consumer->interrupted) ||
            (waits_on && consumer->hello.stopped && consumer->hello.stopped()))
            return FAIL(ST_STOPPED, "interrupted while waiting for %s", consumer->name);
        if (waits_on)
            report_waiting(consumer);
        int64_t left_ms = (deadline - clock_ns()) / 1000000;
        if (left_ms <= 0)
            return ST_TIMEOUT;
        status st =
            wire_recv(consumer->socket, left_ms < SLICE_MS ? (int)left_ms : SLICE_MS, NULL, raw);
        if (st == ST_OK && is_sign_of_life(raw)) {
            wire_msg_clear(raw);
            if (waits_on)
                deadline = clock_ns() + time_ns;
        } else if (st != ST_TIMEOUT) {
            return st;
        }
    }
}

/* Opens a new connection and sends HELLO on it. */
static status connect_daemon(client *consumer)
{
    TRY(wire_new(&consumer->wire));
    if (consumer->hello.keys && consumer->hello.keys[0])
        TRY(wire_use_keys(consumer->wire, consumer->hello.keys));
    TRY(wire_connect(consumer->wire, consumer->hello.endpoint, &consumer->socket));
    if (consumer->heard)
        wire_expect(consumer->socket);
    TRY(send_hello(consumer));
    consumer->joining = true;
    return ST_OK;
}

/* Receives the answer to HELLO. */
static status wait_for_welcome(client *consumer, int timeout_ms)
{
    const client_options *options = &consumer->hello;
    wire_msg_clear(consumer->scratch);
    status st = client_receive(consumer, consumer->scratch, timeout_ms, true);
    if (st == ST_TIMEOUT && wire_greeted(consumer->socket))
        return FAIL(ST_TIMEOUT,
                    "%s is there but did not answer within %.1f s: it may still be building its "
                    "index; wait longer (feed.timeout) or try again later",
                    options->endpoint, options->timeout_ms / 1e3);
    if (st == ST_TIMEOUT)
        return wire_listens(options->endpoint) != ST_OK
                   ? FAIL(ST_UNAVAILABLE, "no answer within %.1f s: %s", options->timeout_ms / 1e3,
                          status_text())
                   : FAIL(ST_UNAVAILABLE,
                          "no answer from %s within %.1f s: is prepd serve running there%s?",
                          options->endpoint, options->timeout_ms / 1e3,
                          options->keys && options->keys[0]
                              ? ", and is its key the one in daemon.pub"
                              : "");
    TRY(st);
    consumer->joining = false;
    return take_welcome(consumer);
}

/* Connects until a daemon welcomes us. A patient client waits for one that is just leaving or
 * restarting as it waits for one that has not started. */
static status greet_daemon(client *consumer)
{
    enum { NAP_MS = 200 };
    const int64_t end_ns = clock_ns() + (int64_t)consumer->hello.timeout_ms * 1000000;
    if (wire_listens(consumer->hello.endpoint) == ST_CONFIG)
        return ST_CONFIG; /* waiting does not change a permission */
    consumer->wait_ns = clock_ns();
    consumer->tell_ns = consumer->wait_ns + 1000000000;
    for (;;) {
        TRY(connect_daemon(consumer));
        status st = wait_for_welcome(consumer, (int)((end_ns - clock_ns()) / 1000000));
        if (st != ST_UNAVAILABLE || !consumer->hello.patient ||
            clock_ns() + NAP_MS * INT64_C(1000000) >= end_ns)
            return st;
        client_hang_up(consumer);
        nanosleep(&(struct timespec){.tv_nsec = NAP_MS * 1000000L}, NULL);
    }
}

status client_open(const client_options *options, client **out)
{
    client *consumer = NULL;
    TRY(client_make(options->endpoint, &consumer));
    status st = keep_options(consumer, options);
    if (st == ST_OK)
        st = greet_daemon(consumer);
    if (st != ST_OK) {
        client_close(&consumer);
        return st;
    }
    *out = consumer;
    return ST_OK;
}

static status reconnect(client *consumer, const char *cursor)
{
    client_hang_up(consumer);
    if (cursor && cursor[0]) {
        char *copy = strdup(cursor);
        if (!copy)
            return FAIL(ST_NO_MEMORY, "no memory for a cursor");
        free((char *)consumer->hello.cursor);
        consumer->hello.cursor = copy;
    }
    wire_msg_clear(consumer->scratch);
    return connect_daemon(consumer);
}

status client_rejoin(client *consumer, const char *cursor, int timeout_ms)
{
    status st = consumer->joining ? ST_OK : reconnect(consumer, cursor);
    if (st == ST_OK)
        st = client_receive(consumer, consumer->scratch, timeout_ms, false);
    if (st == ST_TIMEOUT)
        return FAIL(ST_TIMEOUT, "%s", silence(consumer));
    consumer->joining = false;
    if (st == ST_OK)
        st = take_welcome(consumer);
    if (st != ST_OK) {
        const status_note why = *status_last();
        client_hang_up(consumer);
        status_set(&why);
    }
    return st;
}
