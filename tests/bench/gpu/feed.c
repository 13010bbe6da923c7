/* SPDX-License-Identifier: Apache-2.0 */
/* feed.c: serves a recording as the daemon serves a stream, again and again from its first row on,
 * for machines that lack what prepd is built with: HELLO and WELCOME, credit, rows in order, END.
 * Each consumer walks over the rows at its own pace. With several ranks, each takes its share of
 * every step (proto/session/share.h), as it would from a daemon. A cursor is found by its row's number in
 * the stream that was recorded; start_row counts from the first recorded row.
 *
 *   bench_feed ENDPOINT RECORDING */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/proc.h"
#include "common/program/log.h"
#include "prepd/serve/core/state/hello.h"
#include "prepd/serve/core/state/outside.h"
#include "prepd/serve/door.h"
#include "proto/message/record.h"
#include "proto/session/share.h"

typedef struct recorded_options {
    const char *path, *endpoint;
    const char *keys;     /* folder of CURVE keys; "" without keys */
    const char *ranks;    /* those that are served (common/conf/rank_ranges.h) */
    int io_threads;       /* of ZeroMQ */
    int64_t buffer_bytes; /* most that is under way to all consumers; one row each always may be */
} recorded_options;

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
    int64_t away_ns; /* since when it cannot be reached; 0: it can */
    struct consumer *after;
} consumer;

typedef struct server {
    const char *path;
    const char *ranks;    /* that are served (prepd.ranks) */
    int64_t buffer_bytes; /* most that is under way to all consumers */
    record_reader *record;
    codec *codec;
    uint64_t rows, first_row; /* of the recording; the first one's number in its stream */
    char *options, *index;    /* as its WELCOME names them; NULL if it does not */
    bool prefixes;            /* its rows may have prefixes, as its WELCOME says */
    int64_t step_rows;
    wire *net;
    wire_socket *socket;
    outside world; /* as much of it as the handling of peers needs */
    peer_limits peer_limits;
    int signal_fd;
    consumer *first;
    int count;
    int64_t told_ns;
    bool more; /* a consumer would take more at once */
    bool stopping;
} server;

static void consumer_free(consumer *receiver)
{
    share_free(&receiver->share);
    wire_msg_free(&receiver->next);
    free(receiver);
}

static consumer *find_consumer(const server *serving, const wire_peer *peer)
{
    for (consumer *receiver = serving->first; receiver; receiver = receiver->after)
        if (wire_peer_is(&receiver->peer, peer))
            return receiver;
    return NULL;
}

static void remove_consumer(server *serving, consumer *gone)
{
    consumer **at = &serving->first;
    while (*at && *at != gone)
        at = &(*at)->after;
    if (*at)
        *at = gone->after;
    serving->count--;
    log_info("consumer left rows=%llu", (unsigned long long)gone->sent);
    consumer_free(gone);
}

/* Removes a consumer and tells it why: `why` and the thread's note. */
static void send_away(server *serving, consumer *receiver, status why)
{
    if (wire_send_error(serving->socket, &receiver->peer, 0, why) != ST_OK)
        log_debug("consumer could not be told: %s", status_text());
    remove_consumer(serving, receiver);
}

/* Finds the row of a cursor, which has the number of the next row in the recorded stream. It does
 * not say in which round that was, so one of several ranks can only find its step again if a round
 * is a whole number of steps. */
static status start_of_cursor(const server *serving, const json_value *cursor,
                              const hello *greeting, const char *name, uint64_t *out)
{
    int64_t number;
    const char *index = json_text(json_find(cursor, "index"), NULL);
    TRY(json_want_int(cursor, "row", name, &number));
    if (index && serving->index && strcmp(index, serving->index) != 0)
        return FAIL_IN(ST_CONFIG, name,
                       "the cursor belongs to index %s, but the recording has rows of index %s",
                       index, serving->index);
    if (number < 0 || (uint64_t)number < serving->first_row ||
        (uint64_t)number - serving->first_row > serving->rows)
        return FAIL_IN(ST_CONFIG, name,
                       "the cursor resumes at row %lld, but the recording has %llu rows from row "
                       "%llu on: start without a cursor",
                       (long long)number, (unsigned long long)serving->rows,
                       (unsigned long long)serving->first_row);
    if (greeting->ranks > 1 && serving->rows % (uint64_t)serving->step_rows != 0)
        return FAIL_IN(ST_CONFIG, name,
                       "several ranks cannot continue in a recording of %llu rows, which is not a "
                       "whole number of steps of %lld rows: start without a cursor",
                       (unsigned long long)serving->rows, (long long)serving->step_rows);
    *out = (uint64_t)number - serving->first_row;
    return ST_OK;
}

/* Finds the row with which a consumer starts, counted from the first recorded row. */
static status find_start(const server *serving, const json_value *value, const hello *greeting,
                         const char *name, uint64_t *out, bool *out_by_cursor)
{
    json_value *parsed;
    const json_value *cursor;
    status st = ST_OK;
    TRY(hello_cursor(value, &parsed, &cursor));
    *out = (uint64_t)greeting->start_row;
    *out_by_cursor = cursor != NULL;
    if (cursor)
        st = start_of_cursor(serving, cursor, greeting, name, out);
    json_free(&parsed);
    return st;
}

/* Sends the WELCOME that was recorded, with the row at which this consumer begins and with which
 * rows come again and again. */
static status send_welcome(const server *serving, const consumer *receiver)
{
    json_value *was = NULL;
    json_writer writer;
    const char *welcome = record_welcome(serving->record), *key;
    char *text = NULL;
    size_t size;
    TRY(json_parse(welcome, strlen(welcome), serving->path, &was));
    json_writer_init(&writer);
    json_begin_object(&writer);
    for (size_t i = 0; i < json_count(was); i++) {
        const json_value *value = json_member(was, i, &key);
        if (strcmp(key, "row") == 0 || strcmp(key, "recording") == 0)
            continue;
        json_put_key_value(&writer, key, value);
    }
    json_put_key_int(&writer, "row", (int64_t)(serving->first_row + receiver->at));
    json_begin_key_object(&writer, "recording");
    json_put_key_int(&writer, "first", (int64_t)serving->first_row);
    json_put_key_int(&writer, "rows", (int64_t)serving->rows);
    json_end_object(&writer);
    json_end_object(&writer);
    status st = json_writer_take(&writer, &text, &size);
    if (st == ST_OK)
        st = wire_send_json(serving->socket, &receiver->peer, KIND_WELCOME, 0, text, size);
    free(text);
    json_writer_done(&writer);
    json_free(&was);
    return st;
}

static status greet_consumer(server *serving, consumer *receiver, const json_value *value,
                             const char *name)
{
    hello greeting;
    bool by_cursor;
    TRY(hello_read(value, serving->step_rows, name, &greeting));
    if (strcmp(greeting.stream, "train") != 0)
        return FAIL_IN(ST_CONFIG, name, "a recording has only the train stream");
    TRY(hello_rank_is_served(&greeting, serving->ranks, name));
    if (serving->prefixes)
        TRY(hello_knows_prefixes(greeting.prefixes, name));
    if (serving->options)
        TRY(hello_options_agree(serving->options, value, name));
    TRY(find_start(serving, value, &greeting, name, &receiver->at, &by_cursor));
    receiver->credit = greeting.credit_bytes;
    const replay_options from = {
        .path = serving->path,
        .skip = receiver->at - receiver->at % (uint64_t)serving->step_rows, /* steps begin here */
        .rank = greeting.rank,
        .ranks = greeting.ranks,
        .step_rows = serving->step_rows};
    if (greeting.ranks > 1)
        TRY(share_new(&from, serving->record, serving->codec, UINT64_MAX, &receiver->share));
    if (receiver->share && by_cursor && receiver->at % (uint64_t)serving->step_rows != 0)
        log_warn("the cursor points inside a step; this is right only if all %d ranks were served "
                 "this recording",
                 greeting.ranks);
    if (receiver->share && by_cursor)
        TRY(share_enter(receiver->share, &receiver->at));
    TRY(wire_msg_new(&receiver->next));
    receiver->said_ns = clock_ns();
    return send_welcome(serving, receiver);
}

static status admit_consumer(server *serving, const wire_peer *from, const json_value *value,
                             const char *name)
{
    consumer *old = find_consumer(serving, from), *receiver;
    if (old) {
        /* To start again it should make a new connection. */
        peer_limits_offence(&serving->peer_limits, &serving->world);
        remove_consumer(serving, old);
    }
    TRY(wire_may(from, WIRE_ROWS, name));
    if (serving->count == MOST_CONSUMERS)
        return FAIL(ST_UNAVAILABLE, "%d consumers are here already", MOST_CONSUMERS);
    receiver = calloc(1, sizeof *receiver);
    if (!receiver)
        return FAIL(ST_NO_MEMORY, "no memory for a consumer");
    receiver->peer = *from;
    status st = greet_consumer(serving, receiver, value, name);
    if (st != ST_OK) {
        consumer_free(receiver);
        return st;
    }
    receiver->after = serving->first;
    serving->first = receiver;
    serving->count++;
    log_info("consumer joined consumers=%d", serving->count);
    return ST_OK;
}

static status handle_request(server *serving, const wire_peer *from, const wire_msg *message,
                             const char *name)
{
    frame head;
    json_value *value = NULL;
    consumer *receiver = find_consumer(serving, from);
    status st = ST_OK;
    TRY(wire_read_json(message, name, &head, &value));
    if (head.kind == KIND_HELLO) {
        st = admit_consumer(serving, from, value, name);
    } else if (head.kind == KIND_CREDIT) {
        st = receiver ? credit_take(value, name, &receiver->credit, &receiver->unreturned)
                      : hello_is_missing(name);
    } else if (head.kind == KIND_BYE || (head.kind == KIND_ERROR && receiver)) {
        if (receiver)
            remove_consumer(serving, receiver);
    } else if (head.kind == KIND_REFUSE) {
        st = FAIL_IN(ST_BAD_INPUT, serving->path,
                     "the consumer refuses a row as it was recorded; record the stream again");
    } else {
        st = hello_is_other(name, head.kind);
    }
    json_free(&value);
    return st;
}

static void refuse_message(void *user, door at, const wire_peer *from, status st)
{
    server *serving = user;
    serving->peer_limits.reading = from;
    peer_limits_refuse(&serving->peer_limits, &serving->world, at, from, "message", st);
    serving->peer_limits.reading = NULL;
}

static void take_message(void *user, door at, const wire_peer *from, wire_msg *message)
{
    server *serving = user;
    char name[WIRE_PEER_TEXT];
    wire_peer_print(from, name);
    serving->peer_limits.reading = from;
    const status st = handle_request(serving, from, message, name);
    if (st != ST_OK) {
        peer_limits_refuse(&serving->peer_limits, &serving->world, at, from, "consumer", st);
        consumer *receiver = find_consumer(serving, from);
        if (receiver)
            remove_consumer(serving, receiver);
    }
    serving->peer_limits.reading = NULL;
}

static status send_message(void *user, door at, const wire_peer *to, wire_msg *message)
{
    const server *serving = user;
    (void)at;
    return wire_send(serving->socket, to, message);
}

static bool logs(void *user, int level)
{
    (void)user;
    return log_on(level);
}

static void write_log(void *user, int level, const char *line)
{
    (void)user;
    log_event(level, "%s", line);
}

static status read_next(const server *serving, consumer *receiver)
{
    if (receiver->share)
        TRY(share_find(receiver->share, &receiver->at));
    TRY(record_read(serving->record, receiver->at % serving->rows, receiver->next));
    receiver->at++;
    return ST_OK;
}

/* Whether a row fits the consumer's credit and its share of the buffer. One row is always allowed.
 */
static bool may_send(const server *serving, const consumer *receiver, int64_t bytes)
{
    return receiver->unreturned == 0 ||
           (bytes <= receiver->credit &&
            receiver->unreturned + bytes <= serving->buffer_bytes / serving->count);
}

/* Sends rows until the consumer's credit or its time in this turn is used up. TIMEOUT if it takes
 * no more for now. */
static status send_rows(server *serving, consumer *receiver)
{
    const int64_t end_ns = clock_ns() + SENDING_MS * INT64_C(1000000);
    for (;;) {
        if (wire_msg_parts(receiver->next) == 0)
            TRY(read_next(serving, receiver));
        const int64_t bytes = (int64_t)wire_msg_bytes(receiver->next);
        if (!may_send(serving, receiver, bytes))
            return ST_OK;
        if (clock_ns() > end_ns) {
            serving->more = true;
            return ST_OK;
        }
        TRY(wire_send(serving->socket, &receiver->peer, receiver->next));
        receiver->credit -= bytes;
        receiver->unreturned += bytes;
        receiver->said_ns = clock_ns();
        receiver->sent++;
    }
}

static void send_all(server *serving)
{
    serving->more = false;
    for (consumer *receiver = serving->first, *after; receiver; receiver = after) {
        after = receiver->after;
        const status st = receiver->away_ns ? ST_OK : send_rows(serving, receiver);
        if (st == ST_OK || st == ST_TIMEOUT)
            continue;
        if (st == ST_UNAVAILABLE) {
            receiver->away_ns = clock_ns();
        } else {
            log_warn("consumer sent away: %s",
                     status_text()); /* it would meet a damaged row again */
            send_away(serving, receiver, st);
        }
    }
}

static void still_here(server *serving, int64_t now)
{
    for (consumer *receiver = serving->first, *after; receiver; receiver = after) {
        after = receiver->after;
        if (!consumer_is_lost(&serving->world, &receiver->peer, now, &receiver->said_ns,
                              &receiver->away_ns))
            continue;
        log_info("consumer gone: %s", status_text());
        remove_consumer(serving, receiver);
    }
}

static status copy_text(const json_value *value, char **out)
{
    const char *text = json_text(value, NULL);
    *out = text ? strdup(text) : NULL;
    return text && !*out ? FAIL(ST_NO_MEMORY, "no memory for a recording") : ST_OK;
}

/* Reads from the recorded WELCOME what the stream was. */
static status read_welcome(server *serving)
{
    const char *welcome = record_welcome(serving->record);
    json_value *value = NULL;
    json_writer writer;
    size_t size;
    status st = ST_OK;
    json_writer_init(&writer);
    TRY_OR(done, json_parse(welcome, strlen(welcome), serving->path, &value));
    TRY_OR(done, copy_text(json_find(value, "index"), &serving->index));
    serving->prefixes = json_bool(json_find(value, "prefixes"), false);
    serving->step_rows = json_int(json_find(value, "global_batch_size"), 1);
    if (serving->step_rows < 1) {
        st = FAIL_IN(ST_BAD_INPUT, serving->path,
                     "the recording's WELCOME has the impossible global_batch_size %lld",
                     (long long)serving->step_rows);
        goto done;
    }
    const json_value *options = json_find(value, "options");
    if (options && json_typeof(options) != JSON_NULL) {
        json_put_value(&writer, options);
        TRY_OR(done, json_writer_take(&writer, &serving->options, &size));
    }
done:
    json_writer_done(&writer);
    json_free(&value);
    return st;
}

static status open_recording(server *serving)
{
    wire_msg *message = NULL;
    frame head;
    status st = ST_OK;
    TRY(record_open(serving->path, &serving->record));
    serving->rows = record_rows(serving->record);
    if (serving->rows == 0)
        return FAIL_IN(ST_BAD_INPUT, serving->path, "the recording has no rows");
    TRY(read_welcome(serving));
    TRY(codec_new(&serving->codec));
    TRY(wire_msg_new(&message));
    TRY_OR(done, record_read_block(serving->record, 0, message));
    TRY_OR(done, frame_decode(wire_msg_part(message, 0), serving->path, &head));
    serving->first_row = head.row;
done:
    wire_msg_free(&message);
    return st;
}

static void tick_server(server *serving)
{
    const int64_t now = clock_ns();
    still_here(serving, now);
    if (now - serving->told_ns < TELL_NS)
        return;
    serving->told_ns = now;
    doors_log_refused(serving->net, &serving->socket, 1, &serving->peer_limits);
    peer_limits_log(&serving->peer_limits, &serving->world);
}

/* Of the options nothing is read again, since none of them matters to rows that are made already.
 */
static void take_signal(server *serving, uint32_t number)
{
    serving->stopping |= number == SIGTERM || number == SIGINT;
    if (number != SIGHUP)
        return;
    if (wire_reload_keys(serving->net) == ST_OK)
        log_info("keys read again");
    else
        log_warn("keys not reloaded, and the old ones stay in force: %s", status_text());
}

static status serve_consumers(server *serving)
{
    const door_handler handler = {take_message, refuse_message, serving};
    while (!serving->stopping) {
        wire_wait wait[] = {{.socket = serving->socket}, {.fd = serving->signal_fd}};
        struct signalfd_siginfo info;
        TRY(wire_poll(wait, sizeof wait / sizeof *wait, serving->more ? 0 : TICK_MS));
        while (read(serving->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
            take_signal(serving, info.ssi_signo);
        TRY(door_read(serving->socket, DOOR_CONSUMERS, &serving->peer_limits, &handler));
        send_all(serving);
        tick_server(serving);
    }
    return ST_OK;
}

static status recorded_serve(const recorded_options *asked)
{
    server serving = {.path = asked->path,
                      .ranks = asked->ranks,
                      .buffer_bytes = asked->buffer_bytes,
                      .signal_fd = -1};
    status st = ST_OK;
    serving.world =
        (outside){.shell = &serving, .send = send_message, .logs = logs, .log = write_log};
    TRY_OR(done, open_recording(&serving));
    TRY_OR(done, proc_signal_fd(&serving.signal_fd));
    TRY_OR(done, wire_new(&serving.net));
    TRY_OR(done, wire_io_threads(serving.net, asked->io_threads));
    if (asked->keys[0] && !wire_is_ipc(asked->endpoint))
        TRY_OR(done, wire_serve_keys(serving.net, asked->keys));
    TRY_OR(done, wire_bind(serving.net, asked->endpoint, &consumer_limits, &serving.socket));
    log_info("serving endpoint=%s recording=%s", asked->endpoint, asked->path);
    st = serve_consumers(&serving);
done:;
    const status_note why = *status_last();
    while (serving.first)
        send_away(&serving, serving.first, FAIL(ST_STOPPED, "the daemon stops"));
    status_set(&why);
    wire_close(&serving.socket);
    wire_free(&serving.net);
    if (serving.signal_fd >= 0)
        close(serving.signal_fd);
    codec_free(&serving.codec);
    record_close(&serving.record);
    free(serving.options);
    free(serving.index);
    return st;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "bench_feed ENDPOINT RECORDING\n");
        return 64;
    }
    log_init("feed", LOG_INFO, false);
    const recorded_options options = {.path = argv[2],
                                      .endpoint = argv[1],
                                      .keys = "",
                                      .ranks = "",
                                      .io_threads = 1,
                                      .buffer_bytes = INT64_C(4) << 30};
    status st = recorded_serve(&options);
    if (st != ST_OK)
        fprintf(stderr, "bench_feed: %s\n", status_text());
    return status_exit_code(st);
}
