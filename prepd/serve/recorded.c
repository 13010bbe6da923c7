/* recorded.c: the loop that serves a recording. Each consumer walks over the rows at its own pace,
 * and a round that ends begins again with the first row. With several ranks, each takes its share
 * of every step (proto/share.h), as it would from a daemon. */
#include "prepd/serve/recorded.h"

#include <stdio.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/program/log.h"
#include "common/base/proc.h"
#include "prepd/serve/hello.h"
#include "prepd/serve/peer_limits.h"
#include "proto/record.h"
#include "proto/share.h"

enum {
    TICK_MS = 100,
    SENDING_MS = 25, /* time spent on rows to one consumer before the others have their turn */
    MOST_CONSUMERS = 1024,
};
static const int64_t TELL_NS = 2000000000;

/* A consumer and its own walk over the recording. */
typedef struct consumer {
    wire_peer peer;
    share *share;               /* which rows are its rank's; NULL: all of them */
    uint64_t at;                /* the row after `next`, counted over all rounds */
    wire_msg *next;             /* the row that is sent next; without parts if not read yet */
    int64_t credit, unreturned; /* bytes granted; bytes sent and not given back */
    uint64_t sent;
    int64_t said_ns; /* when it last heard from this process */
    struct consumer *after;
} consumer;

typedef struct server {
    const char *path;
    int64_t buffer_bytes; /* most that is under way to all consumers */
    record_reader *record;
    codec *codec;
    uint64_t rows, first_row; /* of the recording; the first one's number in its stream */
    char *options, *index;    /* as its WELCOME names them; NULL if it does not */
    int64_t step_rows;
    wire *net;
    wire_socket *socket;
    peer_limits peer_limits;
    int signal_fd;
    consumer *first;
    int count;
    int64_t told_ns;
    bool more; /* a consumer would take more at once */
    bool stopping;
} server;

static void consumer_free(consumer *c)
{
    share_free(&c->share);
    wire_msg_free(&c->next);
    free(c);
}

static consumer *find_consumer(const server *s, const wire_peer *peer)
{
    for (consumer *c = s->first; c; c = c->after)
        if (c->peer.size == peer->size && memcmp(c->peer.id, peer->id, peer->size) == 0)
            return c;
    return NULL;
}

static void remove_consumer(server *s, consumer *gone)
{
    consumer **at = &s->first;
    while (*at && *at != gone)
        at = &(*at)->after;
    if (*at)
        *at = gone->after;
    s->count--;
    log_info("consumer left rows=%llu", (unsigned long long)gone->sent);
    consumer_free(gone);
}

/* Removes a consumer and tells it why: `why` and the thread's note. */
static void send_away(server *s, consumer *c, status why)
{
    if (wire_send_error(s->socket, &c->peer, 0, why) != ST_OK)
        log_debug("consumer could not be told: %s", status_text());
    remove_consumer(s, c);
}

/* Finds the row of a cursor, which has the number of the next row in the recorded stream. It does
 * not say in which round that was, so one of several ranks can only find its step again if a round
 * is a whole number of steps. */
static status start_of_cursor(const server *s, const json_value *cursor, const hello *h,
                              const char *name, uint64_t *out)
{
    int64_t number;
    const char *index = json_text(json_find(cursor, "index"), NULL);
    TRY(json_want_int(cursor, "row", name, &number));
    if (index && s->index && strcmp(index, s->index) != 0)
        return FAIL_IN(ST_CONFIG, name,
                       "the cursor belongs to index %s, but the recording has rows of index %s",
                       index, s->index);
    if (number < 0 || (uint64_t)number < s->first_row || (uint64_t)number - s->first_row > s->rows)
        return FAIL_IN(ST_CONFIG, name,
                       "the cursor resumes at row %lld, but the recording has %llu rows from row "
                       "%llu on: start without a cursor",
                       (long long)number, (unsigned long long)s->rows,
                       (unsigned long long)s->first_row);
    if (h->ranks > 1 && s->rows % (uint64_t)s->step_rows != 0)
        return FAIL_IN(ST_CONFIG, name,
                       "several ranks cannot continue in a recording of %llu rows, which is not a "
                       "whole number of steps of %lld rows: start without a cursor",
                       (unsigned long long)s->rows, (long long)s->step_rows);
    *out = (uint64_t)number - s->first_row;
    return ST_OK;
}

/* Finds the row with which a consumer starts, counted from the first recorded row. */
static status find_start(const server *s, const json_value *v, const hello *h, const char *name,
                         uint64_t *out, bool *out_by_cursor)
{
    json_value *parsed;
    const json_value *cursor;
    status st = ST_OK;
    TRY(hello_cursor(v, &parsed, &cursor));
    *out = (uint64_t)h->start_row;
    *out_by_cursor = cursor != NULL;
    if (cursor)
        st = start_of_cursor(s, cursor, h, name, out);
    json_free(&parsed);
    return st;
}

/* Sends the WELCOME that was recorded, with the row at which this consumer begins and with which
 * rows come again and again. */
static status send_welcome(const server *s, const consumer *c)
{
    json_value *was = NULL;
    json_writer w;
    const char *welcome = record_welcome(s->record), *key;
    char *text = NULL;
    size_t size;
    TRY(json_parse(welcome, strlen(welcome), s->path, &was));
    json_writer_init(&w);
    json_begin_object(&w);
    for (size_t i = 0; i < json_count(was); i++) {
        const json_value *v = json_member(was, i, &key);
        if (strcmp(key, "row") == 0 || strcmp(key, "recording") == 0)
            continue;
        json_put_key_value(&w, key, v);
    }
    json_put_key_int(&w, "row", (int64_t)(s->first_row + c->at));
    json_begin_key_object(&w, "recording");
    json_put_key_int(&w, "first", (int64_t)s->first_row);
    json_put_key_int(&w, "rows", (int64_t)s->rows);
    json_end_object(&w);
    json_end_object(&w);
    status st = json_writer_take(&w, &text, &size);
    if (st == ST_OK)
        st = wire_send_json(s->socket, &c->peer, KIND_WELCOME, 0, text, size);
    free(text);
    json_writer_done(&w);
    json_free(&was);
    return st;
}

static status greet_consumer(server *s, consumer *c, const json_value *v, const char *name)
{
    hello h;
    bool by_cursor;
    TRY(hello_read(v, s->step_rows, name, &h));
    if (strcmp(h.stream, "train") != 0)
        return FAIL_IN(ST_CONFIG, name, "a recording has only the train stream");
    if (s->options)
        TRY(hello_options_agree(s->options, v, name));
    TRY(find_start(s, v, &h, name, &c->at, &by_cursor));
    c->credit = h.credit_bytes;
    const replay_options o = {.path = s->path,
                              .skip = c->at - c->at % (uint64_t)s->step_rows, /* steps begin here */
                              .rank = h.rank,
                              .ranks = h.ranks,
                              .step_rows = s->step_rows};
    if (h.ranks > 1)
        TRY(share_new(&o, s->record, s->codec, UINT64_MAX, &c->share));
    if (c->share && by_cursor && c->at % (uint64_t)s->step_rows != 0)
        log_warn("the cursor points inside a step; this is right only if all %d ranks were served "
                 "this recording",
                 h.ranks);
    if (c->share && by_cursor)
        TRY(share_enter(c->share, &c->at));
    TRY(wire_msg_new(&c->next));
    c->said_ns = clock_ns();
    return send_welcome(s, c);
}

static status admit_consumer(server *s, const wire_peer *from, const json_value *v,
                             const char *name)
{
    consumer *old = find_consumer(s, from), *c;
    if (old) {
        peer_limits_offence(&s->peer_limits); /* to start again it should make a new connection */
        remove_consumer(s, old);
    }
    if (s->count == MOST_CONSUMERS)
        return FAIL(ST_UNAVAILABLE, "%d consumers are here already", MOST_CONSUMERS);
    c = calloc(1, sizeof *c);
    if (!c)
        return FAIL(ST_NO_MEMORY, "no memory for a consumer");
    c->peer = *from;
    status st = greet_consumer(s, c, v, name);
    if (st != ST_OK) {
        consumer_free(c);
        return st;
    }
    c->after = s->first;
    s->first = c;
    s->count++;
    log_info("consumer joined consumers=%d", s->count);
    return ST_OK;
}

static status handle_request(server *s, const wire_peer *from, const wire_msg *m, const char *name)
{
    frame head;
    json_value *v = NULL;
    consumer *c = find_consumer(s, from);
    status st = ST_OK;
    TRY(wire_read_json(m, name, &head, &v));
    if (head.kind == KIND_HELLO) {
        st = admit_consumer(s, from, v, name);
    } else if (head.kind == KIND_CREDIT) {
        st = c ? credit_take(v, name, &c->credit, &c->unreturned) : hello_is_missing(name);
    } else if (head.kind == KIND_BYE || (head.kind == KIND_ERROR && c)) {
        if (c)
            remove_consumer(s, c);
    } else {
        st = hello_is_other(name, head.kind);
    }
    json_free(&v);
    return st;
}

static void take_message(void *user, const wire_peer *from, wire_msg *m)
{
    server *s = user;
    char name[WIRE_PEER_TEXT];
    wire_peer_print(from, name);
    const status st = handle_request(s, from, m, name);
    if (st == ST_OK)
        return;
    peer_limits_refuse(&s->peer_limits, s->socket, from, "consumer", st);
    consumer *c = find_consumer(s, from);
    if (c)
        remove_consumer(s, c);
}

static status read_next(const server *s, consumer *c)
{
    if (c->share)
        TRY(share_find(c->share, &c->at));
    TRY(record_read(s->record, c->at % s->rows, c->next));
    c->at++;
    return ST_OK;
}

/* Whether a row fits the consumer's credit and its share of the buffer. One row is always allowed.
 */
static bool may_send(const server *s, const consumer *c, int64_t bytes)
{
    return c->unreturned == 0 ||
           (bytes <= c->credit && c->unreturned + bytes <= s->buffer_bytes / s->count);
}

/* Sends rows until the consumer's credit or its time in this turn is used up. TIMEOUT if it takes
 * no more for now. */
static status send_rows(server *s, consumer *c)
{
    const int64_t end_ns = clock_ns() + SENDING_MS * INT64_C(1000000);
    for (;;) {
        if (wire_msg_parts(c->next) == 0)
            TRY(read_next(s, c));
        const int64_t bytes = (int64_t)wire_msg_bytes(c->next);
        if (!may_send(s, c, bytes))
            return ST_OK;
        if (clock_ns() > end_ns) {
            s->more = true;
            return ST_OK;
        }
        TRY(wire_send(s->socket, &c->peer, c->next));
        c->credit -= bytes;
        c->unreturned += bytes;
        c->said_ns = clock_ns();
        c->sent++;
    }
}

static void send_all(server *s)
{
    s->more = false;
    for (consumer *c = s->first, *after; c; c = after) {
        after = c->after;
        const status st = send_rows(s, c);
        if (st == ST_OK || st == ST_TIMEOUT)
            continue;
        if (st == ST_UNAVAILABLE) {
            log_info("consumer gone: %s", status_text());
            remove_consumer(s, c);
        } else {
            log_warn("consumer sent away: %s",
                     status_text()); /* it would meet a damaged row again */
            send_away(s, c, st);
        }
    }
}

static void still_here(server *s, int64_t now)
{
    for (consumer *c = s->first, *after; c; c = after) {
        after = c->after;
        if (now - c->said_ns < STILL_HERE_NS)
            continue;
        c->said_ns = now;
        if (consumer_is_there(s->socket, &c->peer))
            continue;
        log_info("consumer gone: %s", status_text());
        remove_consumer(s, c);
    }
}

static status copy_text(const json_value *v, char **out)
{
    const char *text = json_text(v, NULL);
    *out = text ? strdup(text) : NULL;
    return text && !*out ? FAIL(ST_NO_MEMORY, "no memory for a recording") : ST_OK;
}

/* Reads from the recorded WELCOME what the stream was. */
static status read_welcome(server *s)
{
    const char *welcome = record_welcome(s->record);
    json_value *v = NULL;
    json_writer w;
    size_t size;
    status st = ST_OK;
    json_writer_init(&w);
    TRY_OR(done, json_parse(welcome, strlen(welcome), s->path, &v));
    TRY_OR(done, copy_text(json_find(v, "index"), &s->index));
    s->step_rows = json_int(json_find(v, "global_batch_size"), 1);
    if (s->step_rows < 1) {
        st = FAIL_IN(ST_BAD_INPUT, s->path,
                     "the recording's WELCOME has the impossible global_batch_size %lld",
                     (long long)s->step_rows);
        goto done;
    }
    const json_value *options = json_find(v, "options");
    if (options && json_typeof(options) != JSON_NULL) {
        json_put_value(&w, options);
        TRY_OR(done, json_writer_take(&w, &s->options, &size));
    }
done:
    json_writer_done(&w);
    json_free(&v);
    return st;
}

static status open_recording(server *s)
{
    wire_msg *m = NULL;
    frame head;
    status st = ST_OK;
    TRY(record_open(s->path, &s->record));
    s->rows = record_rows(s->record);
    if (s->rows == 0)
        return FAIL_IN(ST_BAD_INPUT, s->path, "the recording has no rows");
    TRY(read_welcome(s));
    TRY(codec_new(&s->codec));
    TRY(wire_msg_new(&m));
    TRY_OR(done, record_read_block(s->record, 0, m));
    TRY_OR(done, frame_decode(wire_msg_part(m, 0), s->path, &head));
    s->first_row = head.row;
done:
    wire_msg_free(&m);
    return st;
}

static void tick_server(server *s)
{
    const int64_t now = clock_ns();
    still_here(s, now);
    if (now - s->told_ns < TELL_NS)
        return;
    s->told_ns = now;
    peer_limits_tell(&s->peer_limits, s->net, &s->socket, 1);
}

static status serve_consumers(server *s)
{
    while (!s->stopping) {
        wire_wait wait[] = {{.socket = s->socket}, {.fd = s->signal_fd}};
        struct signalfd_siginfo info;
        TRY(wire_poll(wait, sizeof wait / sizeof *wait, s->more ? 0 : TICK_MS));
        while (read(s->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
            s->stopping |= info.ssi_signo == SIGTERM || info.ssi_signo == SIGINT;
        TRY(peer_limits_read(&s->peer_limits, s->socket, take_message, s));
        send_all(s);
        tick_server(s);
    }
    return ST_OK;
}

status recorded_serve(const recorded_options *o)
{
    server s = {.path = o->path, .buffer_bytes = o->buffer_bytes, .signal_fd = -1};
    status st = ST_OK;
    TRY_OR(done, open_recording(&s));
    TRY_OR(done, proc_signal_fd(&s.signal_fd));
    TRY_OR(done, wire_new(&s.net));
    TRY_OR(done, wire_io_threads(s.net, o->io_threads));
    if (o->keys[0] && !wire_is_ipc(o->endpoint))
        TRY_OR(done, wire_serve_keys(s.net, o->keys));
    TRY_OR(done, wire_bind(s.net, o->endpoint, &consumer_limits, &s.socket));
    log_info("serving endpoint=%s recording=%s", o->endpoint, o->path);
    st = serve_consumers(&s);
done:;
    const status_note why = *status_last();
    while (s.first)
        send_away(&s, s.first, FAIL(ST_STOPPED, "the daemon stops"));
    status_set(&why);
    wire_close(&s.socket);
    wire_free(&s.net);
    if (s.signal_fd >= 0)
        close(s.signal_fd);
    codec_free(&s.codec);
    record_close(&s.record);
    free(s.options);
    free(s.index);
    return st;
}
