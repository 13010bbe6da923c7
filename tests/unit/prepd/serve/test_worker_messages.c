/* SPDX-License-Identifier: Apache-2.0 */
/* Test of peer_messages.c: messages of a worker whose connection has ended before they are
 * read, or whose lease was given to another. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "prepd/serve/shell.h"
#include "proto/wire/wire.h"
#include "tests/harness.h"
#include "tests/unit/prepd/serve/still_world.h"
#include "prepd/serve/core/workers/core_workers.h"
#include "prepd/serve/core/decisions/core_decisions.h"

enum { WAIT_MS = 20000 };

/* Waits until a message to this peer is refused because its connection has ended. */
static bool has_gone(wire_socket *socket, const wire_peer *to)
{
    const int64_t late_ns = clock_ns() + WAIT_MS * INT64_C(1000000);
    while (clock_ns() < late_ns) {
        if (wire_send_json(socket, to, KIND_TERMS, 0, "{}", 2) == ST_UNAVAILABLE)
            return true;
        usleep(1000);
    }
    return false;
}

/* An idle worker repeats JOIN now and then, and may end right after it. That is no breach of the
 * protocol. */
static void test_seat_message__ending_is_not_a_breach(void **state)
{
    (void)state;
    static const char join[] = "{\"version\":\"1\",\"host\":\"there\",\"pid\":7}";
    const wire_limits limits = {.part_bytes = 1 << 16, .unsent = 64};
    conf options = {0};
    shell around = {0};
    dispatch daemon = {.outside = shell_outside(&around), .options = &options, .now_ns = 1};
    char endpoint[64];
    wire *other_side = NULL;
    wire_socket *worker = NULL;
    wire_msg *message = NULL, *error = NULL;
    worker_seat *seat = calloc(1, sizeof *seat);
    account of = {.number = 1};
    assert_non_null(seat);
    assert_non_null(daemon.terms = strdup("{}"));
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%d", harness_port(NULL));
    assert_ok(wire_new(&around.net));
    assert_ok(wire_new(&other_side));
    assert_ok(wire_msg_new(&message));
    assert_ok(wire_bind(around.net, endpoint, &limits, &around.socket[DOOR_WORKERS]));
    assert_ok(wire_connect(other_side, endpoint, &worker));
    assert_ok(wire_send_json(worker, NULL, KIND_JOIN, 0, join, sizeof join - 1));
    assert_ok(wire_recv(around.socket[DOOR_WORKERS], WAIT_MS, &seat->peer, message));
    const wire_peer from = seat->peer;
    seat->has_terms = true;
    seat->of = &of;
    daemon.seats = seat;
    daemon.n_seats = 1;
    assert_ok(wire_msg_new(&error));
    assert_ok(wire_send_error(worker, NULL, 0, FAIL(ST_IO, "no room")));
    assert_ok(wire_recv(around.socket[DOOR_WORKERS], WAIT_MS, &seat->peer, error));
    wire_close(&worker);
    assert_true(has_gone(around.socket[DOOR_WORKERS], &from));
    peer_message(&daemon, DOOR_WORKERS, &from, message);
    /* it keeps its seat while what it sent is read */
    assert_ptr_equal(daemon.seats, seat);
    assert_true(seat->unreachable);
    assert_int_equal(daemon.counts.breaches, 0);
    assert_int_equal(of.breaches, 0);
    /* A local worker that sent its reason after its JOIN is heard. */
    seat->unreachable = false;
    seat->local = seat->decider = true;
    seat->of = NULL;
    seat->pid = daemon.local.child[0].pid = 7;
    daemon.local.n_places = 1;
    peer_message(&daemon, DOOR_WORKERS, &from, message);
    assert_ptr_equal(daemon.seats, seat);
    peer_message(&daemon, DOOR_WORKERS, &from, error);
    assert_null(daemon.seats);
    assert_int_equal(daemon.local.why.code, ST_IO);
    assert_int_equal(daemon.counts.breaches, 0);
    wire_msg_free(&message);
    wire_msg_free(&error);
    wire_close(&around.socket[DOOR_WORKERS]);
    wire_free(&other_side);
    wire_free(&around.net);
    free(daemon.terms);
}

/* The kinds of the messages that were sent to workers. */
static int n_sent[KIND_ANSWER + 1];

static status note_sent(void *around, door at, const wire_peer *to, wire_msg *message)
{
    frame head;
    (void)around, (void)to;
    assert_int_equal(at, DOOR_WORKERS);
    assert_ok(frame_decode(wire_msg_part(message, 0), "core", &head));
    n_sent[head.kind]++;
    wire_msg_clear(message);
    return ST_OK;
}

static void say(dispatch *daemon, const wire_peer *from, frame_kind kind, uint64_t row,
                const char *json)
{
    wire_msg *message = NULL;
    assert_ok(wire_json_message(kind, row, json, strlen(json), NULL, &message));
    peer_message(daemon, DOOR_WORKERS, from, message);
    wire_msg_free(&message);
}

/* A connection stands still. The worker at its end asks whether the daemon is there, is given a
 * row, makes it, and all that it says comes when the row was given to another long ago. It gets no
 * other lease, which its late row would seem to answer: it starts anew. */
static void test_seat_message__what_comes_late_is_no_breach(void **state)
{
    (void)state;
    static const char join[] = "{\"version\":\"1\",\"host\":\"there\",\"pid\":7}";
    static consumer_seat consumer;
    conf options = {.prepd_sample_timeout = 1};
    dispatch daemon = {.outside = still_world(), .options = &options};
    worker_seat *seat = calloc(1, sizeof *seat);
    lease *leased = NULL;
    account of = {.number = 1, .uses = 1, .seats = 1};
    assert_non_null(seat);
    assert_non_null(daemon.terms = strdup("{}"));
    daemon.outside.send = note_sent;
    lease_book_init(&daemon.book, 2);
    assert_ok(lease_new(&daemon.book, LEASE_ROW, &consumer, 19, (const int64_t[]){3}, 1, &leased));
    *seat = (worker_seat){
        .number = 1, .pid = 7, .proved = true, .has_terms = true, .work = leased, .of = &of};
    const wire_peer from = seat->peer = (wire_peer){.size = 1, .id = {5}, .roles = WIRE_WORK};
    daemon.seats = seat;
    daemon.n_seats = 1;
    dispatch_at(&daemon, INT64_C(5000000000));
    seats_check_time(&daemon, daemon.now_ns);
    assert_ptr_equal(daemon.book.lost, leased); /* for another worker */
    assert_int_equal(leased->losses, 0);
    memset(n_sent, 0, sizeof n_sent);
    say(&daemon, &from, KIND_JOIN, 0, join);
    say(&daemon, &from, KIND_ON, leased->number, "{\"item\":3}");
    say(&daemon, &from, KIND_ROW, 19, "{}");
    assert_ptr_equal(daemon.seats, seat);
    assert_int_equal(daemon.n_seats, 1);
    assert_false(seat_can_work(seat));
    assert_int_equal(n_sent[KIND_BYE], 2);
    assert_int_equal(n_sent[KIND_ERROR], 0);
    say(&daemon, &from, KIND_BYE, 0, "{}");
    assert_null(daemon.seats);
    assert_ptr_equal(lease_book_take(&daemon.book, true), leased);
    lease_free(&leased);
    free(daemon.terms);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_seat_message__ending_is_not_a_breach),
        cmocka_unit_test(test_seat_message__what_comes_late_is_no_breach),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
