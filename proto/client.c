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
    int64_t wait_ns;      /* when waiting for WELCOME began */
    int64_t tell_ns;      /* when hello.waiting is called next */
    /* recording */
    record_reader *record;
    share *share;       /* NULL if this client gets all rows */
    uint64_t next, end; /* rows over all loops */
    int64_t left_over;  /* after `end`: less than a step */
};

static status client_new(const char *name, client **out)
{
    client *c = calloc(1, sizeof *c);
    status st = ST_OK;
    if (!c || !(c->name = strdup(name))) {
        free(c);
        return FAIL(ST_NO_MEMORY, "no memory for a client");
    }
    TRY_OR(failed, codec_new(&c->codec));
    TRY_OR(failed, wire_msg_new(&c->scratch));
    *out = c;
    return ST_OK;
failed:
    client_close(&c);
    return st;
}

static void free_texts(client_options *o)
{
    const char *const text[] = {o->endpoint, o->keys, o->stream, o->stream_options, o->cursor};
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        free((char *)text[i]);
    memset(o, 0, sizeof *o);
}

/* Keeps the caller's options with copies of their texts. */
static status keep_options(client *c, const client_options *o)
{
    c->hello = *o;
    const char **const text[] = {&c->hello.endpoint, &c->hello.keys, &c->hello.stream,
                                 &c->hello.stream_options, &c->hello.cursor};
    bool all = true;
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        if (*text[i])
            all &= (*text[i] = strdup(*text[i])) != NULL;
    return all ? ST_OK : FAIL(ST_NO_MEMORY, "no memory for a client");
}

static void hang_up(client *c)
{
    c->heard |= c->socket && wire_greeted(c->socket);
    wire_close(&c->socket);
    wire_free(&c->wire);
    c->joining = false;
}

void client_close(client **client_)
{
    client *c = client_ ? *client_ : NULL;
    if (!c)
        return;
    /* Best effort: a daemon that has left needs no BYE, and the caller's status note must remain
     * the reason for which it gives up. */
    const status_note why = *status_last();
    if (c->socket && c->welcome && wire_send_json(c->socket, NULL, KIND_BYE, 0, "{}", 2) != ST_OK)
        status_set(&why);
    hang_up(c);
    share_free(&c->share);
    record_close(&c->record);
    codec_free(&c->codec);
    wire_msg_free(&c->scratch);
    free_texts(&c->hello);
    free(c->welcome);
    free(c->name);
    free(c);
    *client_ = NULL;
}

static void put_json_or_null(json_writer *w, const char *key, const char *json)
{
    json_put_key(w, key);
    if (json && json[0])
        json_put_raw(w, json, strlen(json));
    else
        json_put_null(w);
}

static status send_hello(client *c)
{
    const client_options *o = &c->hello;
    json_writer w;
    char *text = NULL, program[128];
    size_t size;
    snprintf(program, sizeof program, "%s %s", program_invocation_short_name, TESSERA_VERSION);
    json_writer_init(&w);
    json_begin_object(&w);
    json_put_key_int(&w, "version", FRAME_VERSION);
    json_put_key_cstr(&w, "program", program);
    json_put_key_cstr(&w, "stream", o->stream);
    put_json_or_null(&w, "options", o->stream_options);
    put_json_or_null(&w, "cursor", o->cursor);
    json_put_key_int(&w, "start_row", o->start_row);
    json_put_key_int(&w, "rank", o->rank);
    json_put_key_int(&w, "ranks", o->ranks);
    json_put_key_int(&w, "credit_bytes", o->credit_bytes);
    json_put_key_bool(&w, "rows_later", o->rows_later);
    if (o->report)
        json_put_key_bool(&w, "report", true);
    json_end_object(&w);
    status st = json_writer_take(&w, &text, &size);
    if (st == ST_OK && size > HELLO_BYTES) /* prepd would cut the connection without a reason */
        st = FAIL(ST_BAD_INPUT,
                  "the cursor lists so many bad samples that HELLO has %zu bytes, but %s accepts "
                  "%d: repair the data and start its epochs again (checkpoint.load_step 0)",
                  size, c->name, HELLO_BYTES);
    if (st == ST_OK)
        st = wire_send_json(c->socket, NULL, KIND_HELLO, 0, text, size);
    free(text);
    json_writer_done(&w);
    return st;
}

/* Makes the peer's KIND_ERROR a failure of ours. A daemon that is stopping counts as gone. */
static status read_refusal(const client *c, const wire_msg *m)
{
    frame head;
    json_value *v = NULL;
    TRY(wire_read_json(m, c->name, &head, &v));
    status st = wire_error(v, c->name);
    json_free(&v);
    return st == ST_STOPPED ? FAIL(ST_UNAVAILABLE, "%s", status_text()) : st;
}

/* Checks that a daemon which came back has the same stream as before. The number of rows may be
 * missing from either WELCOME (rows_later). */
static status same_stream(const client *c, const json_value *now)
{
    static const char *const number[] = {"rows", "seq_len", "token_budget", "patch_budget",
                                         "global_batch_size"};
    json_value *was = NULL;
    TRY(json_parse(c->welcome, strlen(c->welcome), "WELCOME", &was));
    const char *index[2] = {json_text(json_find(was, "index"), ""),
                            json_text(json_find(now, "index"), "")};
    status st = ST_OK;
    if (strcmp(index[0], index[1]) != 0)
        st = FAIL_IN(ST_CONFIG, c->name,
                     "the daemon came back with another data set: its index is %s, it was %s",
                     index[1], index[0]);
    for (size_t i = 0; i < sizeof number / sizeof *number && st == ST_OK; i++) {
        const int64_t before = json_int(json_find(was, number[i]), -1);
        const int64_t after = json_int(json_find(now, number[i]), -1);
        if (before != after && before >= 0 && after >= 0)
            st = FAIL_IN(ST_CONFIG, c->name,
                         "the daemon came back with another stream: its %s is %lld, it was %lld",
                         number[i], (long long)after, (long long)before);
    }
    json_free(&was);
    return st;
}

/* Keeps the first WELCOME, whose text the caller may hold; later ones are compared with it. */
static status keep_welcome(client *c, const json_value *v, span text)
{
    if (c->welcome)
        return same_stream(c, v);
    c->welcome = strndup((const char *)text.data, text.size);
    return c->welcome ? ST_OK : FAIL(ST_NO_MEMORY, "no memory for a WELCOME");
}

/* The number of the row that HELLO asks for. For a recording, start_row counts from its first. */
static status asked_row(const client *c, const json_value *welcome, uint64_t *out)
{
    const char *cursor = c->hello.cursor;
    json_value *v = NULL;
    int64_t at;
    if (!cursor || !cursor[0]) {
        const int64_t first = json_int(json_find(json_find(welcome, "recording"), "first"), 0);
        *out = (uint64_t)c->hello.start_row + (uint64_t)(first > 0 ? first : 0);
        return ST_OK;
    }
    TRY(json_parse(cursor, strlen(cursor), "the cursor", &v));
    status st = json_want_int(v, "row", "the cursor", &at);
    json_free(&v);
    if (st == ST_OK && at < 0)
        st = FAIL(ST_BAD_INPUT, "the cursor resumes at row %lld, which is below 0", (long long)at);
    if (st == ST_OK)
        *out = (uint64_t)at;
    return st;
}

static status begin_order(client *c, const json_value *welcome)
{
    uint64_t asked;
    TRY(asked_row(c, welcome, &asked));
    return row_order_begin(welcome, c->name, asked, c->hello.rank, c->hello.ranks, &c->order);
}

static status take_welcome(client *c)
{
    frame head;
    json_value *v = NULL;
    TRY(frame_decode(wire_msg_part(c->scratch, 0), c->name, &head));
    if (head.kind == KIND_ERROR)
        return read_refusal(c, c->scratch);
    if (head.kind != KIND_WELCOME)
        return FAIL_IN(ST_PROTOCOL, c->name, "the daemon answered hello with %s, expected welcome",
                       frame_kind_name(head.kind));
    TRY(wire_read_json(c->scratch, c->name, &head, &v));
    status st = begin_order(c, v);
    if (st == ST_OK)
        st = keep_welcome(c, v, wire_msg_part(c->scratch, 1));
    json_free(&v);
    return st;
}

/* A sign of life: prepd is there but has nothing to send (CREDIT of 0 bytes). */
static bool still_here(const wire_msg *m)
{
    frame head;
    return wire_msg_parts(m) == 2 && frame_decode(wire_msg_part(m, 0), "", &head) == ST_OK &&
           head.kind == KIND_CREDIT;
}

/* Opens a new connection and sends HELLO on it. */
static status knock_daemon(client *c)
{
    TRY(wire_new(&c->wire));
    if (c->hello.keys && c->hello.keys[0])
        TRY(wire_use_keys(c->wire, c->hello.keys));
    TRY(wire_connect(c->wire, c->hello.endpoint, &c->socket));
    if (c->heard)
        wire_expect(c->socket);
    TRY(send_hello(c));
    c->joining = true;
    return ST_OK;
}

/* Why there is no WELCOME yet. The text is valid until the next failure is noted. */
static const char *silence(client *c)
{
    if (wire_greeted(c->socket))
        return "the daemon is there and is preparing the stream";
    if (wire_cut(c->socket))
        return "every connection there is closed at once: by a proxy without a daemon, or by a "
               "daemon that demands keys";
    return wire_listens(c->hello.endpoint) == ST_OK ? "nothing answers there" : status_text();
}

static void report_waiting(client *c)
{
    enum { EVERY_S = 10 };
    const int64_t now = clock_ns();
    if (!c->hello.waiting || now < c->tell_ns)
        return;
    c->tell_ns = now + EVERY_S * INT64_C(1000000000);
    c->hello.waiting(c->hello.endpoint, (double)(now - c->wait_ns) * 1e-9, silence(c));
}

/* Waits for any message but a sign of life, in slices, so that client_interrupt is noticed.
 * waits_on means that the first WELCOME is awaited: then a sign of life starts the time again. The
 * caller notes ST_TIMEOUT. */
static status receive_message(client *c, wire_msg *raw, int timeout_ms, bool waits_on)
{
    enum { SLICE_MS = 100 };
    const int64_t time_ns = (int64_t)timeout_ms * 1000000;
    int64_t deadline = clock_ns() + time_ns;
    for (;;) {
        if (atomic_load(&c->interrupted) || (waits_on && c->hello.stopped && c->hello.stopped()))
            return FAIL(ST_STOPPED, "interrupted while waiting for %s", c->name);
        if (waits_on)
            report_waiting(c);
        int64_t left_ms = (deadline - clock_ns()) / 1000000;
        if (left_ms <= 0)
            return ST_TIMEOUT;
        status st = wire_recv(c->socket, left_ms < SLICE_MS ? (int)left_ms : SLICE_MS, NULL, raw);
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
static status hear_welcome(client *c, int timeout_ms)
{
    const client_options *o = &c->hello;
    wire_msg_clear(c->scratch);
    status st = receive_message(c, c->scratch, timeout_ms, true);
    if (st == ST_TIMEOUT && wire_greeted(c->socket))
        return FAIL(ST_TIMEOUT,
                    "%s is there but did not answer within %.1f s: it may still be building its "
                    "index; wait longer (feed.timeout) or try again later",
                    o->endpoint, o->timeout_ms / 1e3);
    if (st == ST_TIMEOUT)
        return wire_listens(o->endpoint) != ST_OK
                   ? FAIL(ST_UNAVAILABLE, "no answer within %.1f s: %s", o->timeout_ms / 1e3,
                          status_text())
                   : FAIL(ST_UNAVAILABLE,
                          "no answer from %s within %.1f s: is prepd serve running there%s?",
                          o->endpoint, o->timeout_ms / 1e3,
                          o->keys && o->keys[0] ? ", and is its key the one in daemon.pub" : "");
    TRY(st);
    c->joining = false;
    return take_welcome(c);
}

/* Connects until a daemon welcomes us. A patient client waits for one that is just leaving or
 * restarting as it waits for one that has not started. */
static status greet_daemon(client *c)
{
    enum { NAP_MS = 200 };
    const int64_t end_ns = clock_ns() + (int64_t)c->hello.timeout_ms * 1000000;
    if (wire_listens(c->hello.endpoint) == ST_CONFIG)
        return ST_CONFIG; /* waiting does not change a permission */
    c->wait_ns = clock_ns();
    c->tell_ns = c->wait_ns + 1000000000;
    for (;;) {
        TRY(knock_daemon(c));
        status st = hear_welcome(c, (int)((end_ns - clock_ns()) / 1000000));
        if (st != ST_UNAVAILABLE || !c->hello.patient ||
            clock_ns() + NAP_MS * INT64_C(1000000) >= end_ns)
            return st;
        hang_up(c);
        nanosleep(&(struct timespec){.tv_nsec = NAP_MS * 1000000L}, NULL);
    }
}

status client_open(const client_options *o, client **out)
{
    client *c = NULL;
    TRY(client_new(o->endpoint, &c));
    status st = keep_options(c, o);
    if (st == ST_OK)
        st = greet_daemon(c);
    if (st != ST_OK) {
        client_close(&c);
        return st;
    }
    *out = c;
    return ST_OK;
}

static status begin_anew(client *c, const char *cursor)
{
    hang_up(c);
    if (cursor && cursor[0]) {
        char *copy = strdup(cursor);
        if (!copy)
            return FAIL(ST_NO_MEMORY, "no memory for a cursor");
        free((char *)c->hello.cursor);
        c->hello.cursor = copy;
    }
    wire_msg_clear(c->scratch);
    return knock_daemon(c);
}

status client_rejoin(client *c, const char *cursor, int timeout_ms)
{
    status st = c->joining ? ST_OK : begin_anew(c, cursor);
    if (st == ST_OK)
        st = receive_message(c, c->scratch, timeout_ms, false);
    if (st == ST_TIMEOUT)
        return FAIL(ST_TIMEOUT, "%s", silence(c));
    c->joining = false;
    if (st == ST_OK)
        st = take_welcome(c);
    if (st != ST_OK) {
        const status_note why = *status_last();
        hang_up(c);
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
static status find_end(client *c, const replay_options *o)
{
    c->end = rows_of(c->record, o->loops);
    c->next = o->skip < c->end ? o->skip : c->end;
    if (o->step_rows < 1 || c->end == UINT64_MAX)
        return ST_OK;
    c->left_over = (int64_t)((c->end - c->next) % (uint64_t)o->step_rows);
    c->end -= (uint64_t)c->left_over;
    if (c->end == 0)
        return FAIL_IN(ST_BAD_INPUT, c->name,
                       "%lld rows are recorded here, but a step takes %lld "
                       "(training.global_batch_size): there is no whole step",
                       (long long)c->left_over, (long long)o->step_rows);
    return ST_OK;
}

status client_replay(const replay_options *o, client **out)
{
    client *c = NULL;
    status st;
    TRY(client_new(o->path, &c));
    TRY_OR(failed, record_open(o->path, &c->record));
    TRY_OR(failed, find_end(c, o));
    if (o->ranks > 1) {
        TRY_OR(failed, share_new(o, c->record, c->codec, c->end, &c->share));
        TRY_OR(failed, share_find(c->share, &c->next));
    }
    *out = c;
    return ST_OK;
failed:
    client_close(&c);
    return st;
}

const char *client_welcome(const client *c)
{
    return c->record ? record_welcome(c->record) : c->welcome;
}

int64_t client_rows(const client *c)
{
    return c->record ? (int64_t)record_rows(c->record) : -1;
}

int64_t client_left_over(const client *c)
{
    return c->left_over;
}

/* Checks that row i of the file follows the one before. It may also be the first again, if what was
 * recorded was itself a recording, served in rounds. */
static status check_recorded(const client *c, uint64_t i, uint64_t number)
{
    frame before, first;
    if (i == 0)
        return ST_OK;
    TRY(record_head(c->record, i - 1, &before));
    if (number == before.row + 1)
        return ST_OK;
    TRY(record_head(c->record, 0, &first));
    return number == first.row
               ? ST_OK
               : FAIL_IN(ST_BAD_INPUT, c->name,
                         "row %llu comes after row %llu where row %llu was expected: the "
                         "recording is not of one stream",
                         (unsigned long long)number, (unsigned long long)before.row,
                         (unsigned long long)(before.row + 1));
}

static status next_recorded(client *c, wire_msg *raw, frame *out_head)
{
    if (c->next == c->end)
        return ST_END;
    const uint64_t i = c->next % record_rows(c->record);
    TRY(record_read(c->record, i, raw));
    TRY(frame_decode(wire_msg_part(raw, 0), c->name, out_head));
    TRY(check_recorded(c, i, out_head->row));
    c->next++;
    return c->share ? share_find(c->share, &c->next) : ST_OK;
}

/* Gives back the credit of a row that was taken. A daemon that has just left is noticed by the next
 * receive instead, after the rows that had arrived. */
static status return_credit(client *c, const wire_msg *taken)
{
    char json[48];
    int size = snprintf(json, sizeof json, "{\"bytes\":%zu}", wire_msg_bytes(taken));
    status st = wire_send_json(c->socket, NULL, KIND_CREDIT, 0, json, (size_t)size);
    return st == ST_UNAVAILABLE ? ST_OK : st;
}

void client_interrupt(client *c)
{
    atomic_store(&c->interrupted, true);
}

static status next_received(client *c, wire_msg *raw, frame *out_head)
{
    frame head;
    const int timeout_ms = c->hello.timeout_ms;
    status st = c->socket ? receive_message(c, raw, timeout_ms, false)
                          : FAIL(ST_UNAVAILABLE, "not connected to %s", c->name);
    if (st == ST_TIMEOUT)
        return FAIL(ST_TIMEOUT, "no row came from %s for %.1f s", c->name, timeout_ms / 1e3);
    TRY(st);
    TRY(frame_decode(wire_msg_part(raw, 0), c->name, &head));
    switch (head.kind) {
    case KIND_ROW:
        TRY(row_order_take(&c->order, c->name, head.row));
        TRY(return_credit(c, raw));
        *out_head = head;
        return ST_OK;
    case KIND_END:
        c->ended = true;
        return ST_END;
    case KIND_ERROR:
        return read_refusal(c, raw);
    default:
        return FAIL_IN(ST_PROTOCOL, c->name, "a message of kind %s came where a row was expected",
                       frame_kind_name(head.kind));
    }
}

status client_next_raw(client *c, wire_msg *raw, frame *out_head)
{
    frame head;
    if (c->ended)
        return ST_END;
    TRY(c->record ? next_recorded(c, raw, &head) : next_received(c, raw, &head));
    if (out_head)
        *out_head = head;
    return ST_OK;
}

status client_next(client *c, arena *a, row *out, frame *out_head, wire_msg *raw)
{
    TRY(client_next_raw(c, c->scratch, NULL));
    TRY(codec_decode(c->codec, c->scratch, c->name, a, out, out_head));
    if (raw) {
        wire_msg_clear(raw);
        TRY(wire_msg_move(raw, c->scratch));
    } else {
        wire_msg_clear(c->scratch);
    }
    return ST_OK;
}
