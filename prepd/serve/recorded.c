#include "prepd/serve/recorded.h"

#include <stdio.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/conf.h"
#include "common/log.h"
#include "common/proc.h"
#include "proto/client.h"
#include "proto/record.h"

enum {
    TICK_MS = 100,
    MOST_CONSUMERS = 1024,
    MOST_RANKS = 65536,
    CREDIT_BITS = 42 /* 4 TiB: as the dispatcher */
};
const wire_limits consumer_limits = {
    .part_bytes = 8 << 20, .unsent = 1024, .unread_bytes = 10 << 20, .all_unread_bytes = 12 << 20};

/* Who takes rows, at its own pace: a walk of its own over the recording. */
typedef struct consumer {
    wire_peer peer;
    client *rows;
    wire_msg *next;             /* the row that goes next; no parts: not read yet */
    int64_t credit, unreturned; /* bytes granted; bytes sent and not given back */
    uint64_t sent;
    struct consumer *after;
} consumer;

typedef struct server {
    const char *path;
    char *welcome, *options; /* JSON of the recording; options NULL: it names none */
    int64_t step_rows;
    wire *net;
    wire_socket *socket;
    int signal_fd;
    consumer *first;
    int n;
    bool stopping;
} server;

status hello_options_agree(const char *stream_json, const json_value *hello, const char *name)
{
    const json_value *theirs = json_find(hello, "options");
    char *difference = NULL, *text = NULL;
    size_t size;
    json_writer w;
    if (!theirs || json_typeof(theirs) == JSON_NULL)
        return ST_OK; /* takes ours as they are */
    json_writer_init(&w);
    json_put_value(&w, theirs);
    status st = json_writer_take(&w, &text, &size);
    json_writer_done(&w);
    if (st == ST_OK)
        st = conf_stream_diff(stream_json, text, &difference);
    free(text);
    if (st == ST_OK && difference)
        st = FAIL_IN(ST_CONFIG, name,
                     "the consumer's options give another stream: %s; start both programs with "
                     "the same configuration",
                     difference);
    free(difference);
    return st;
}

static void consumer_free(consumer *c)
{
    client_close(&c->rows);
    wire_msg_free(&c->next);
    free(c);
}

static consumer *find(const server *s, const wire_peer *peer)
{
    for (consumer *c = s->first; c; c = c->after)
        if (c->peer.size == peer->size && memcmp(c->peer.id, peer->id, peer->size) == 0)
            return c;
    return NULL;
}

static void leave(server *s, consumer *gone)
{
    consumer **at = &s->first;
    while (*at && *at != gone)
        at = &(*at)->after;
    if (*at)
        *at = gone->after;
    s->n--;
    log_info("consumer left rows=%llu", (unsigned long long)gone->sent);
    consumer_free(gone);
}

/* Where it begins: a cursor's row, or start_row; rows of all rounds together. */
static status start_row(const json_value *hello, const char *name, int64_t *out)
{
    const json_value *cursor = json_find(hello, "cursor");
    json_value *parsed = NULL;
    status st = ST_OK;
    *out = json_int(json_find(hello, "start_row"), 0);
    if (!cursor || json_typeof(cursor) == JSON_NULL)
        return ST_OK;
    if (json_typeof(cursor) == JSON_TEXT)
        TRY(json_parse(json_text(cursor, ""), json_text_size(cursor), "cursor", &parsed));
    st = json_want_int(parsed ? parsed : cursor, "row", name, out);
    json_free(&parsed);
    return st;
}

static status greet(server *s, consumer *c, const json_value *hello, const char *name)
{
    int64_t version, from;
    const int64_t rank = json_int(json_find(hello, "rank"), 0);
    const int64_t ranks = json_int(json_find(hello, "ranks"), 1);
    TRY(json_want_int(hello, "version", name, &version));
    TRY(json_want_int(hello, "credit_bytes", name, &c->credit));
    TRY(start_row(hello, name, &from));
    if (version != FRAME_VERSION)
        return FAIL_IN(ST_PROTOCOL, name, "consumer of protocol version %lld, this daemon has %d",
                       (long long)version, FRAME_VERSION);
    if (strcmp(json_text(json_find(hello, "stream"), ""), "train") != 0)
        return FAIL_IN(ST_CONFIG, name, "a recording has the train stream alone");
    if (ranks < 1 || ranks > MOST_RANKS || rank < 0 || rank >= ranks || from < 0 || c->credit < 1 ||
        c->credit > (int64_t)1 << CREDIT_BITS)
        return FAIL_IN(ST_PROTOCOL, name, "rank %lld of %lld, row %lld, credit of %lld bytes",
                       (long long)rank, (long long)ranks, (long long)from, (long long)c->credit);
    if (s->options)
        TRY(hello_options_agree(s->options, hello, name));
    const replay_options o = {.path = s->path,
                              .skip = (uint64_t)from,
                              .rank = (int)rank,
                              .ranks = (int)ranks,
                              .step_rows = s->step_rows};
    TRY(client_replay(&o, &c->rows));
    TRY(wire_msg_new(&c->next));
    return wire_send_json(s->socket, &c->peer, KIND_WELCOME, 0, s->welcome, strlen(s->welcome));
}

static status join(server *s, const wire_peer *from, const json_value *hello, const char *name)
{
    consumer *old = find(s, from), *c;
    if (old)
        leave(s, old);
    if (s->n == MOST_CONSUMERS)
        return FAIL(ST_UNAVAILABLE, "%d consumers are here already", MOST_CONSUMERS);
    c = calloc(1, sizeof *c);
    if (!c)
        return FAIL(ST_NO_MEMORY, "no memory for a consumer");
    c->peer = *from;
    status st = greet(s, c, hello, name);
    if (st != ST_OK) {
        consumer_free(c);
        return st;
    }
    c->after = s->first;
    s->first = c;
    s->n++;
    log_info("consumer joined consumers=%d", s->n);
    return ST_OK;
}

status hello_is_missing(const char *name)
{
    return FAIL_IN(ST_UNAVAILABLE, name,
                   "credit on a connection that has no session: it is a new one, begin with hello");
}

static status take_credit(consumer *c, const json_value *v, const char *name)
{
    int64_t bytes;
    TRY(json_want_int(v, "bytes", name, &bytes));
    if (bytes < 0 || bytes > c->unreturned)
        return FAIL_IN(ST_PROTOCOL, name, "credit of %lld bytes, %lld are under way",
                       (long long)bytes, (long long)c->unreturned);
    c->credit += bytes;
    c->unreturned -= bytes;
    return ST_OK;
}

static status handle(server *s, const wire_peer *from, const wire_msg *m, const char *name)
{
    frame head;
    json_value *v = NULL;
    consumer *c = find(s, from);
    status st;
    TRY(wire_read_json(m, name, &head, &v));
    if (head.kind == KIND_HELLO) {
        st = join(s, from, v, name);
    } else if (head.kind == KIND_CREDIT) {
        st = c ? take_credit(c, v, name) : hello_is_missing(name);
    } else if (head.kind == KIND_BYE) {
        st = ST_OK;
        if (c)
            leave(s, c);
    } else {
        st = FAIL_IN(ST_PROTOCOL, name, "a consumer does not send %s here",
                     frame_kind_name(head.kind));
    }
    json_free(&v);
    return st;
}

/* All that has come. What one peer sends wrong is its affair alone. */
static status read_all(server *s)
{
    wire_msg *m = NULL;
    status st;
    TRY(wire_msg_new(&m));
    for (;;) {
        wire_peer from;
        char name[WIRE_PEER_TEXT];
        wire_msg_clear(m);
        st = wire_recv(s->socket, 0, &from, m);
        if (st != ST_OK && st != ST_PROTOCOL)
            break;
        wire_peer_print(&from, name);
        if (st == ST_OK)
            st = handle(s, &from, m, name);
        if (st == ST_OK)
            continue;
        log_warn("consumer refused: %s", status_text());
        if (wire_send_error(s->socket, &from, 0, st) != ST_OK)
            log_debug("it could not be told: %s", status_text());
        consumer *c = find(s, &from);
        if (c)
            leave(s, c);
    }
    wire_msg_free(&m);
    return st == ST_TIMEOUT ? ST_OK : st;
}

/* Rows within its credit; one at least is always allowed. ST_TIMEOUT: it takes no more for now. */
static status send_rows(server *s, consumer *c)
{
    for (;;) {
        if (wire_msg_parts(c->next) == 0)
            TRY(client_next_raw(c->rows, c->next, NULL));
        const int64_t bytes = (int64_t)wire_msg_bytes(c->next);
        if (bytes > c->credit && c->unreturned > 0)
            return ST_OK;
        TRY(wire_send(s->socket, &c->peer, c->next));
        c->credit -= bytes;
        c->unreturned += bytes;
        c->sent++;
    }
}

static void send_all(server *s)
{
    for (consumer *c = s->first, *after; c; c = after) {
        after = c->after;
        status st = send_rows(s, c);
        if (st == ST_OK || st == ST_TIMEOUT)
            continue;
        log_info("consumer gone: %s", status_text());
        leave(s, c);
    }
}

/* The recording's own words about its stream. */
static status read_welcome(server *s)
{
    record_reader *r = NULL;
    json_value *v = NULL;
    json_writer w;
    size_t size;
    status st = ST_OK;
    json_writer_init(&w);
    TRY_OR(done, record_open(s->path, &r));
    if (record_rows(r) == 0) {
        st = FAIL_IN(ST_BAD_INPUT, s->path, "a recording without rows");
        goto done;
    }
    s->welcome = strdup(record_welcome(r));
    if (!s->welcome) {
        st = FAIL(ST_NO_MEMORY, "no memory for a recording");
        goto done;
    }
    TRY_OR(done, json_parse(s->welcome, strlen(s->welcome), s->path, &v));
    s->step_rows = json_int(json_find(v, "global_batch_size"), 1);
    const json_value *options = json_find(v, "options");
    if (options && json_typeof(options) != JSON_NULL) {
        json_put_value(&w, options);
        TRY_OR(done, json_writer_take(&w, &s->options, &size));
    }
done:
    json_writer_done(&w);
    json_free(&v);
    record_close(&r);
    return st;
}

static status loop(server *s)
{
    while (!s->stopping) {
        wire_wait wait[] = {{.socket = s->socket}, {.fd = s->signal_fd}};
        struct signalfd_siginfo info;
        TRY(wire_poll(wait, sizeof wait / sizeof *wait, TICK_MS));
        while (read(s->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
            s->stopping |= info.ssi_signo == SIGTERM || info.ssi_signo == SIGINT;
        TRY(read_all(s));
        send_all(s);
    }
    return ST_OK;
}

status recorded_serve(const char *path, const char *endpoint, const char *keys)
{
    server s = {.path = path, .signal_fd = -1};
    status st = ST_OK;
    TRY_OR(done, read_welcome(&s));
    TRY_OR(done, proc_signal_fd(&s.signal_fd));
    TRY_OR(done, wire_new(&s.net));
    if (keys[0] && !wire_is_ipc(endpoint))
        TRY_OR(done, wire_serve_keys(s.net, keys));
    TRY_OR(done, wire_bind(s.net, endpoint, &consumer_limits, &s.socket));
    log_info("serving endpoint=%s recording=%s", endpoint, path);
    st = loop(&s);
done:
    while (s.first)
        leave(&s, s.first);
    wire_close(&s.socket);
    wire_free(&s.net);
    if (s.signal_fd >= 0)
        close(s.signal_fd);
    free(s.welcome);
    free(s.options);
    return st;
}
