/* client.c: rows from a daemon or from a recording. */
#include "proto/client.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/json.h"
#include "proto/record.h"
#include "proto/share.h"

struct client {
    char *name;    /* endpoint or path, for errors */
    char *welcome; /* of the daemon; the recording keeps its own */
    codec *codec;
    wire_msg *m; /* scratch of client_next */
    bool ended;
    atomic_bool interrupted; /* set by another thread */
    /* daemon */
    wire *wire;
    wire_socket *socket;
    int timeout_ms;
    /* recording */
    record_reader *record;
    share *share;       /* NULL: all rows are ours */
    uint64_t next, end; /* rows over all loops */
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
    TRY_OR(failed, wire_msg_new(&c->m));
    *out = c;
    return ST_OK;
failed:
    client_close(&c);
    return st;
}

void client_close(client **client_)
{
    client *c = client_ ? *client_ : NULL;
    if (!c)
        return;
    /* Best effort: a daemon that is gone needs no goodbye. */
    if (c->socket && c->welcome)
        (void)!wire_send_json(c->socket, NULL, KIND_BYE, 0, "{}", 2);
    wire_close(&c->socket);
    wire_free(&c->wire);
    share_free(&c->share);
    record_close(&c->record);
    codec_free(&c->codec);
    wire_msg_free(&c->m);
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

static void put_int(json_writer *w, const char *key, int64_t v)
{
    json_put_key(w, key);
    json_put_int(w, v);
}

static status send_hello(client *c, const client_options *o)
{
    json_writer w;
    char *text = NULL, program[128];
    size_t size;
    snprintf(program, sizeof program, "%s %s", program_invocation_short_name, TESSERA_VERSION);
    json_writer_init(&w);
    json_begin_object(&w);
    put_int(&w, "version", FRAME_VERSION);
    json_put_key(&w, "program");
    json_put_cstr(&w, program);
    json_put_key(&w, "stream");
    json_put_cstr(&w, o->stream);
    put_json_or_null(&w, "options", o->stream_options);
    put_json_or_null(&w, "cursor", o->cursor);
    put_int(&w, "start_row", o->start_row);
    put_int(&w, "rank", o->rank);
    put_int(&w, "ranks", o->ranks);
    put_int(&w, "credit_bytes", o->credit_bytes);
    json_end_object(&w);
    status st = json_writer_take(&w, &text, &size);
    if (st == ST_OK)
        st = wire_send_json(c->socket, NULL, KIND_HELLO, 0, text, size);
    free(text);
    json_writer_done(&w);
    return st;
}

/* The peer's KIND_ERROR as our failure. */
static status refused(const client *c, const wire_msg *m)
{
    frame head;
    json_value *v = NULL;
    TRY(wire_read_json(m, c->name, &head, &v));
    status st = wire_error(v, c->name);
    json_free(&v);
    return st;
}

static status take_welcome(client *c)
{
    frame head;
    json_value *v = NULL;
    TRY(frame_decode(wire_msg_part(c->m, 0), c->name, &head));
    if (head.kind == KIND_ERROR)
        return refused(c, c->m);
    if (head.kind != KIND_WELCOME)
        return FAIL_IN(ST_PROTOCOL, c->name, "%s in answer to hello, expected welcome",
                       frame_kind_name(head.kind));
    TRY(wire_read_json(c->m, c->name, &head, &v));
    json_free(&v);
    span text = wire_msg_part(c->m, 1);
    c->welcome = strndup((const char *)text.data, text.size);
    return c->welcome ? ST_OK : FAIL(ST_NO_MEMORY, "no memory for a WELCOME");
}

/* prepd is there but has nothing to send (CREDIT of 0 bytes). */
static bool still_here(const wire_msg *m)
{
    frame head;
    return wire_msg_parts(m) == 2 && frame_decode(wire_msg_part(m, 0), "", &head) == ST_OK &&
           head.kind == KIND_CREDIT;
}

static status greet(client *c, const client_options *o)
{
    TRY(wire_new(&c->wire));
    if (o->keys && o->keys[0])
        TRY(wire_use_keys(c->wire, o->keys));
    TRY(wire_connect(c->wire, o->endpoint, &c->socket));
    TRY(send_hello(c, o));
    status st;
    do {
        wire_msg_clear(c->m);
        st = wire_recv(c->socket, o->timeout_ms, NULL, c->m);
    } while (st == ST_OK && still_here(c->m));
    if (st == ST_TIMEOUT && wire_greeted(c->socket))
        return FAIL(ST_TIMEOUT,
                    "%s is there but did not answer within %.1f s: it may still be building its "
                    "index; wait longer (feed.timeout) or start again later",
                    o->endpoint, o->timeout_ms / 1e3);
    if (st == ST_TIMEOUT)
        return FAIL(ST_UNAVAILABLE,
                    "no answer from %s within %.1f s: is prepd serve running there%s?", o->endpoint,
                    o->timeout_ms / 1e3,
                    o->keys && o->keys[0] ? ", and is its key the one in daemon.pub" : "");
    TRY(st);
    return take_welcome(c);
}

status client_open(const client_options *o, client **out)
{
    client *c = NULL;
    TRY(client_new(o->endpoint, &c));
    c->timeout_ms = o->timeout_ms;
    status st = greet(c, o);
    if (st != ST_OK) {
        client_close(&c);
        return st;
    }
    *out = c;
    return ST_OK;
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

status client_replay(const replay_options *o, client **out)
{
    client *c = NULL;
    status st;
    TRY(client_new(o->path, &c));
    TRY_OR(failed, record_open(o->path, &c->record));
    c->end = rows_of(c->record, o->loops);
    c->next = o->skip < c->end ? o->skip : c->end;
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

static status next_recorded(client *c, wire_msg *raw, frame *out_head)
{
    if (c->next == c->end)
        return ST_END;
    TRY(record_read(c->record, c->next % record_rows(c->record), raw));
    TRY(frame_decode(wire_msg_part(raw, 0), c->name, out_head));
    c->next++;
    return c->share ? share_find(c->share, &c->next) : ST_OK;
}

/* Gives back what a taken row weighed. A daemon that has just gone is noticed at the next receive,
 * after the rows that had arrived. */
static status return_credit(client *c, const wire_msg *taken)
{
    char json[48];
    int size = snprintf(json, sizeof json, "{\"bytes\":%zu}", wire_msg_bytes(taken));
    status st = wire_send_json(c->socket, NULL, KIND_CREDIT, 0, json, (size_t)size);
    return st == ST_UNAVAILABLE ? ST_OK : st;
}

/* Waits in slices, so that client_interrupt is noticed. */
static status receive(client *c, wire_msg *raw)
{
    enum { SLICE_MS = 100 };
    int64_t deadline = clock_ns() + (int64_t)c->timeout_ms * 1000000;
    for (;;) {
        if (atomic_load(&c->interrupted))
            return FAIL(ST_STOPPED, "interrupted while waiting for a row from %s", c->name);
        int64_t left_ms = (deadline - clock_ns()) / 1000000;
        if (left_ms <= 0)
            return FAIL(ST_TIMEOUT, "no row came from %s for %.1f s", c->name, c->timeout_ms / 1e3);
        status st = wire_recv(c->socket, left_ms < SLICE_MS ? (int)left_ms : SLICE_MS, NULL, raw);
        if (st == ST_OK && still_here(raw))
            wire_msg_clear(raw); /* it lives, but the limit is on rows */
        else if (st != ST_TIMEOUT)
            return st;
    }
}

void client_interrupt(client *c)
{
    atomic_store(&c->interrupted, true);
}

static status next_received(client *c, wire_msg *raw, frame *out_head)
{
    frame head;
    TRY(receive(c, raw));
    TRY(frame_decode(wire_msg_part(raw, 0), c->name, &head));
    switch (head.kind) {
    case KIND_ROW:
        TRY(return_credit(c, raw));
        *out_head = head;
        return ST_OK;
    case KIND_END:
        c->ended = true;
        return ST_END;
    case KIND_ERROR:
        return refused(c, raw);
    default:
        return FAIL_IN(ST_PROTOCOL, c->name, "%s where a row was expected",
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
    TRY(client_next_raw(c, c->m, NULL));
    TRY(codec_decode(c->codec, c->m, c->name, a, out, out_head));
    if (raw) {
        wire_msg_clear(raw);
        TRY(wire_msg_move(raw, c->m));
    } else {
        wire_msg_clear(c->m);
    }
    return ST_OK;
}
