/* client.c: rows from a daemon or from a recording.
 *
 * Half of a client is used at a time. For a daemon: a socket, the options that HELLO repeats after
 * every reconnect, and the order that rows must come in. For a recording: its reader and, with
 * several ranks, the share. The public functions choose by `record`. */
#include "proto/client.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/json/json.h"
#include "common/program/log.h"
#include "proto/decisions.h"
#include "proto/record.h"
#include "proto/row_order.h"
#include "proto/share.h"

struct client {
    char *name;    /* endpoint or path, for errors */
    char *welcome; /* of the daemon; the recording keeps its own */
    codec *codec;
    wire_msg *scratch; /* the message in client_next and in greeting a daemon */
    bool ended;
    atomic_bool interrupted; /* set by another thread */
    /* daemon */
    wire *wire;
    wire_socket *socket;
    client_options hello; /* for this HELLO and the next; the texts are copies */
    bool joining;         /* HELLO is sent, WELCOME has not come */
    bool heard;           /* a daemon was there, on an earlier connection */
    row_order order;      /* that its rows must come in */
    bool tags;            /* its rows have tags */
    int64_t listed;       /* bad samples in the list of HELLO */
    char *cursor;         /* [cursor_bytes] of the last row that was taken; NULL at first */
    size_t cursor_bytes;
    int64_t wait_ns; /* when waiting for WELCOME began */
    int64_t tell_ns; /* when hello.waiting is called next */
    /* recording */
    record_reader *record;
    share *share;       /* NULL if this client gets all rows */
    uint64_t next, end; /* rows over all loops */
    int64_t left_over;  /* after `end`: less than a step */
};

static status client_new(const char *name, client **out)
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
    const char *const text[] = {
        options->endpoint, options->keys,       options->stream, options->stream_options,
        options->cursor,   options->quarantine, options->run,    options->consumer};
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        free((char *)text[i]);
    memset(options, 0, sizeof *options);
}

/* Keeps the caller's options with copies of their texts. */
static status keep_options(client *consumer, const client_options *options)
{
    consumer->hello = *options;
    client_options *const hello = &consumer->hello;
    const char **const text[] = {
        &hello->endpoint, &hello->keys,       &hello->stream, &hello->stream_options,
        &hello->cursor,   &hello->quarantine, &hello->run,    &hello->consumer};
    bool all = true;
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        if (*text[i])
            all &= (*text[i] = strdup(*text[i])) != NULL;
    return all ? ST_OK : FAIL(ST_NO_MEMORY, "no memory for a client");
}

static void hang_up(client *consumer)
{
    consumer->heard |= consumer->socket && wire_greeted(consumer->socket);
    wire_close(&consumer->socket);
    wire_free(&consumer->wire);
    consumer->joining = false;
}

void client_close(client **client_)
{
    client *consumer = client_ ? *client_ : NULL;
    if (!consumer)
        return;
    /* Best effort: a daemon that has left needs no BYE, and the caller's status note must remain
     * the reason for which it gives up. */
    const status_note why = *status_last();
    if (consumer->socket && consumer->welcome &&
        wire_send_json(consumer->socket, NULL, KIND_BYE, 0, "{}", 2) != ST_OK)
        status_set(&why);
    hang_up(consumer);
    share_free(&consumer->share);
    record_close(&consumer->record);
    codec_free(&consumer->codec);
    wire_msg_free(&consumer->scratch);
    free_texts(&consumer->hello);
    free(consumer->welcome);
    free(consumer->cursor);
    free(consumer->name);
    free(consumer);
    *client_ = NULL;
}

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
    static const char mend[] =
        "repair the data and start its epochs again (checkpoint.load_step 0)";
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

static status send_hello(client *consumer)
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

/* Makes the peer's KIND_ERROR a failure of ours. A daemon that is stopping counts as gone. */
static status read_refusal(const client *consumer, const wire_msg *message)
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
    const status st = read_refusal(consumer, consumer->scratch);
    return st == ST_PROTOCOL
               ? FAIL(ST_PROTOCOL,
                      "%s. This program needs a daemon with protocol version %d: run both programs "
                      "of the same release",
                      status_text(), SESSION_VERSION)
               : st;
}

/* Refuses a daemon that has not taken the list of HELLO: one from before there was such a list,
 * which also gets a cursor without its own. Recordings have their own lists. */
static status check_listed(const client *consumer, const json_value *welcome)
{
    if (json_find(welcome, "recording") ||
        json_int(json_find(welcome, "quarantined"), 0) >= consumer->listed)
        return ST_OK;
    return FAIL_IN(ST_MISMATCH, consumer->name,
                   "the daemon has not taken the list of %lld bad samples that the run goes on "
                   "with, since it is older: run both programs of the same release",
                   (long long)consumer->listed);
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
    if (st == ST_OK)
        st = check_listed(consumer, value);
    consumer->tags = json_int(json_find(value, "version"), 0) >= SESSION_TAGS;
    if (st == ST_OK)
        st = keep_welcome(consumer, value, wire_msg_part(consumer->scratch, 1));
    json_free(&value);
    return st;
}

/* A sign of life: prepd is there but has nothing to send (CREDIT of 0 bytes). */
static bool still_here(const wire_msg *message)
{
    frame head;
    return wire_msg_parts(message) == 2 &&
           frame_decode(wire_msg_part(message, 0), "", &head) == ST_OK && head.kind == KIND_CREDIT;
}

/* Opens a new connection and sends HELLO on it. */
static status knock_daemon(client *consumer)
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

/* Waits for any message but a sign of life, in slices, so that client_interrupt is noticed.
 * waits_on means that the first WELCOME is awaited: then a sign of life starts the time again. The
 * caller notes ST_TIMEOUT. */
static status receive_message(client *consumer, wire_msg *raw, int timeout_ms, bool waits_on)
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
        if (st == ST_OK && still_here(raw)) {
            wire_msg_clear(raw);
            if (waits_on)
                deadline = clock_ns() + time_ns;
        } else if (st != ST_TIMEOUT) {
            return st;
        }
    }
}

/* Receives the answer to HELLO. */
static status hear_welcome(client *consumer, int timeout_ms)
{
    const client_options *options = &consumer->hello;
    wire_msg_clear(consumer->scratch);
    status st = receive_message(consumer, consumer->scratch, timeout_ms, true);
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
        TRY(knock_daemon(consumer));
        status st = hear_welcome(consumer, (int)((end_ns - clock_ns()) / 1000000));
        if (st != ST_UNAVAILABLE || !consumer->hello.patient ||
            clock_ns() + NAP_MS * INT64_C(1000000) >= end_ns)
            return st;
        hang_up(consumer);
        nanosleep(&(struct timespec){.tv_nsec = NAP_MS * 1000000L}, NULL);
    }
}

status client_open(const client_options *options, client **out)
{
    client *consumer = NULL;
    TRY(client_new(options->endpoint, &consumer));
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

static status begin_anew(client *consumer, const char *cursor)
{
    hang_up(consumer);
    if (cursor && cursor[0]) {
        char *copy = strdup(cursor);
        if (!copy)
            return FAIL(ST_NO_MEMORY, "no memory for a cursor");
        free((char *)consumer->hello.cursor);
        consumer->hello.cursor = copy;
    }
    wire_msg_clear(consumer->scratch);
    return knock_daemon(consumer);
}

status client_rejoin(client *consumer, const char *cursor, int timeout_ms)
{
    status st = consumer->joining ? ST_OK : begin_anew(consumer, cursor);
    if (st == ST_OK)
        st = receive_message(consumer, consumer->scratch, timeout_ms, false);
    if (st == ST_TIMEOUT)
        return FAIL(ST_TIMEOUT, "%s", silence(consumer));
    consumer->joining = false;
    if (st == ST_OK)
        st = take_welcome(consumer);
    if (st != ST_OK) {
        const status_note why = *status_last();
        hang_up(consumer);
        status_set(&why);
    }
    return st;
}

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
    TRY(client_new(options->path, &consumer));
    TRY_OR(failed, record_open(options->path, &consumer->record));
    if (!record_has_tags(consumer->record))
        log_info("the recording %s has version 1: its rows have no tags to be checked against",
                 options->path);
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
    status st = consumer->socket ? receive_message(consumer, raw, timeout_ms, false)
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
        return read_refusal(consumer, raw);
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

/* Keeps the cursor of a row that was taken: a row that is refused is asked for again with it. */
static status keep_cursor(client *consumer, const char *cursor)
{
    const size_t bytes = strlen(cursor) + 1;
    if (bytes > consumer->cursor_bytes) {
        char *at = (char *)realloc(consumer->cursor, 2 * bytes);
        if (!at)
            return FAIL(ST_NO_MEMORY, "no memory for a cursor of %zu bytes", bytes);
        consumer->cursor = at;
        consumer->cursor_bytes = 2 * bytes;
    }
    memcpy(consumer->cursor, cursor, bytes);
    return ST_OK;
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
            receive_message(consumer, consumer->scratch, consumer->hello.timeout_ms, false);
        if (st == ST_TIMEOUT)
            return FAIL(ST_TIMEOUT, "%s did not answer that a row was refused", consumer->name);
        TRY(st);
        TRY(frame_decode(wire_msg_part(consumer->scratch, 0), consumer->name, &head));
        if (head.kind == KIND_ERROR)
            return read_refusal(consumer, consumer->scratch);
    }
}

/* Tells the daemon that a row is not what was ordered, as the thread's note says, and comes back
 * for it. The daemon has another worker make it. A daemon that does not let us in again counts as
 * gone, so that the caller decides how long it waits. */
static status refuse_row(client *consumer, uint64_t number)
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
    hang_up(consumer);
    return FAIL(ST_UNAVAILABLE, "%s", why.message);
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
            st = keep_cursor(consumer, out->cursor);
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
