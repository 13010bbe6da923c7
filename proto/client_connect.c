/* client_connect.c: a client's connection to a daemon: opening it, waiting for what comes, and
 * coming back after a loss. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "proto/client_parts.h"

/* A sign of life: prepd is there but has nothing to send (CREDIT of 0 bytes). */
static bool still_here(const wire_msg *message)
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
        if (st == ST_OK && still_here(raw)) {
            wire_msg_clear(raw);
            if (waits_on)
                deadline = clock_ns() + time_ns;
        } else if (st != ST_TIMEOUT) {
            return st;
        }
    }
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
    TRY(client_send_hello(consumer));
    consumer->joining = true;
    return ST_OK;
}

/* Receives the answer to HELLO. */
static status hear_welcome(client *consumer, int timeout_ms)
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
    return client_take_welcome(consumer);
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
        client_hang_up(consumer);
        nanosleep(&(struct timespec){.tv_nsec = NAP_MS * 1000000L}, NULL);
    }
}

status client_open(const client_options *options, client **out)
{
    client *consumer = NULL;
    TRY(client_make(options->endpoint, &consumer));
    status st = client_keep_options(consumer, options);
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
    client_hang_up(consumer);
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
        st = client_receive(consumer, consumer->scratch, timeout_ms, false);
    if (st == ST_TIMEOUT)
        return FAIL(ST_TIMEOUT, "%s", silence(consumer));
    consumer->joining = false;
    if (st == ST_OK)
        st = client_take_welcome(consumer);
    if (st != ST_OK) {
        const status_note why = *status_last();
        client_hang_up(consumer);
        status_set(&why);
    }
    return st;
}
