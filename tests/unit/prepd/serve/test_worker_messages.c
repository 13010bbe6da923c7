/* Test of worker_messages.c: messages of a worker whose connection has ended before they are
 * read. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "prepd/serve/dispatch_state.h"
#include "proto/wire.h"
#include "tests/harness.h"

enum { WAIT_MS = 20000 };

/* Waits until a message to this peer is refused because its connection has ended. */
static bool has_gone(dispatch *d, const wire_peer *to)
{
    const int64_t late_ns = clock_ns() + WAIT_MS * INT64_C(1000000);
    while (clock_ns() < late_ns) {
        if (wire_send_json(d->workers, to, KIND_TERMS, 0, "{}", 2) == ST_UNAVAILABLE)
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
    conf c = {0};
    dispatch d = {.options = &c, .signal_fd = -1};
    char endpoint[64];
    wire *outside = NULL;
    wire_socket *worker = NULL;
    wire_msg *m = NULL, *error = NULL;
    worker_seat *w = calloc(1, sizeof *w);
    assert_non_null(w);
    assert_non_null(d.terms = strdup("{}"));
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%d", harness_port(NULL));
    assert_ok(wire_new(&d.net));
    assert_ok(wire_new(&outside));
    assert_ok(wire_msg_new(&m));
    assert_ok(wire_bind(d.net, endpoint, &limits, &d.workers));
    assert_ok(wire_connect(outside, endpoint, &worker));
    assert_ok(wire_send_json(worker, NULL, KIND_JOIN, 0, join, sizeof join - 1));
    assert_ok(wire_recv(d.workers, WAIT_MS, &w->peer, m));
    const wire_peer from = w->peer;
    w->has_terms = true;
    d.seats = w;
    d.n_seats = 1;
    assert_ok(wire_msg_new(&error));
    assert_ok(wire_send_error(worker, NULL, 0, FAIL(ST_IO, "no room")));
    assert_ok(wire_recv(d.workers, WAIT_MS, &w->peer, error));
    wire_close(&worker);
    assert_true(has_gone(&d, &from));
    seat_message(&d, &from, m);
    /* it keeps its seat until its supervisor says how it ended, or some seconds pass */
    assert_ptr_equal(d.seats, w);
    assert_true(w->lost_ns > 0);
    assert_int_equal(d.counts.breaches, 0);
    assert_int_equal(d.breaches.of[0].n_breaches, 0);
    /* A local worker that sent its reason after its JOIN is heard. */
    w->lost_ns = 0;
    w->local = true;
    w->pid = d.local.child[0].pid = 7;
    seat_message(&d, &from, m);
    assert_ptr_equal(d.seats, w);
    seat_message(&d, &from, error);
    assert_null(d.seats);
    assert_int_equal(d.local.why.code, ST_IO);
    assert_int_equal(d.counts.breaches, 0);
    wire_msg_free(&m);
    wire_msg_free(&error);
    wire_close(&d.workers);
    wire_free(&outside);
    wire_free(&d.net);
    free(d.terms);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_seat_message__ending_is_not_a_breach),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
