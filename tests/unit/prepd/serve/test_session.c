/* SPDX-License-Identifier: Apache-2.0 */
/* Test of consumers.c: a consumer that reads nothing for a while still gets END (the consumer is a
 * plain TCP socket that writes ZMTP byte by byte), and one that has left is closed by the BYE that
 * it sent, or after a while without one. */
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "prepd/serve/core/state/hello.h"
#include "prepd/serve/shell.h"
#include "tests/harness.h"
#include "tests/unit/prepd/serve/still_world.h"
#include "prepd/serve/core/consumers/core_consumers.h"

enum { UNSENT = 4, PART_BYTES = 1 << 20, WAIT_MS = 10000 };

/* Connects as a DEALER would, with the handshake of ZMTP 3.0 without security, and sends a short
 * message. */
static int knock_port(int port)
{
    static const uint8_t ready[] = "\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06"
                                   "DEALER";
    uint8_t greeting[64] = {0xff, [9] = 0x7f, 3, 0, 'N', 'U', 'L', 'L'}, theirs[64];
    const struct sockaddr_in address = {.sin_family = AF_INET,
                                        .sin_port = htons((uint16_t)port),
                                        .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(send(fd, greeting, sizeof greeting, 0), sizeof greeting);
    assert_int_equal(recv(fd, theirs, sizeof theirs, MSG_WAITALL), sizeof theirs);
    assert_int_equal(send(fd, ready, sizeof ready - 1, 0), sizeof ready - 1);
    assert_int_equal(send(fd, "\0\2hi", 4, 0), 4);
    return fd;
}

/* Sends until nothing has fitted for 0.2 s. */
static void fill_queue(wire_socket *socket, const wire_peer *to)
{
    static const uint8_t zeros[PART_BYTES];
    const int64_t quiet_ns = 200000000;
    int64_t since_ns = clock_ns();
    wire_msg *message = NULL;
    assert_ok(wire_msg_new(&message));
    while (clock_ns() - since_ns < quiet_ns) {
        wire_msg_clear(message);
        assert_ok(wire_msg_add(message, zeros, sizeof zeros));
        const status st = wire_send(socket, to, message);
        assert_true(st == ST_OK || st == ST_TIMEOUT);
        if (st == ST_OK)
            since_ns = clock_ns();
    }
    wire_msg_free(&message);
}

/* Reads until what came ends with these words. False if they do not come in time. */
static bool hears(dispatch *state, int fd, const char *words)
{
    static char bytes[PART_BYTES];
    const size_t length = strlen(words);
    char end[64] = "";
    const int64_t late_ns = clock_ns() + WAIT_MS * INT64_C(1000000);
    while (clock_ns() < late_ns && strcmp(end, words) != 0) {
        const ssize_t some = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (some >= (ssize_t)length)
            snprintf(end, sizeof end, "%.*s", (int)length, bytes + some - length);
        consumers_deliver(state);
    }
    return strcmp(end, words) == 0;
}

static void test_consumers_deliver__end_waits_for_room(void **state)
{
    (void)state;
    shell around = {0};
    dispatch daemon = {.outside = shell_outside(&around)};
    char endpoint[64];
    wire_msg *message = NULL;
    const int port = harness_port(NULL);
    const wire_limits limits = {.unsent = UNSENT};
    consumer_seat *consumer = calloc(1, sizeof *consumer);
    assert_non_null(consumer);
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%d", port);
    assert_ok(wire_new(&around.net));
    assert_ok(wire_msg_new(&message));
    assert_ok(wire_bind(around.net, endpoint, &limits, &around.socket[DOOR_CONSUMERS]));
    const int fd = knock_port(port);
    assert_ok(wire_recv(around.socket[DOOR_CONSUMERS], WAIT_MS, &consumer->peer, message));
    consumer->ended = true;
    consumer->rows_sent = 7;
    daemon.consumer_seats = consumer;
    daemon.n_consumers = 1;
    fill_queue(around.socket[DOOR_CONSUMERS], &consumer->peer);
    consumers_deliver(&daemon); /* there is no room for END */
    assert_true(hears(&daemon, fd, "{\"rows\":7}"));
    assert_true(consumer->end_sent);
    consumer_close(&daemon, consumer, NULL);
    close(fd);
    wire_msg_free(&message);
    wire_close(&around.socket[DOOR_CONSUMERS]);
    wire_free(&around.net);
}

static char logged[1024];

static bool logs_all(void *unused, int level)
{
    (void)unused, (void)level;
    return true;
}

static void keep_line(void *unused, int level, const char *line)
{
    (void)unused, (void)level;
    const size_t used = strlen(logged);
    snprintf(logged + used, sizeof logged - used, "%s\n", line);
}

static status refuse_send(void *unused, door at, const wire_peer *to, wire_msg *message)
{
    (void)unused, (void)at, (void)to, (void)message;
    return FAIL(ST_UNAVAILABLE, "Host unreachable");
}

/* A daemon that finds out by a row that its consumer has closed the connection. */
static void row_cannot_be_sent(dispatch *daemon)
{
    *daemon = (dispatch){.outside = still_world(), .now_ns = 1};
    daemon->outside.send = refuse_send;
    daemon->outside.logs = logs_all;
    daemon->outside.log = keep_line;
    logged[0] = 0;
    consumer_seat *consumer = calloc(1, sizeof *consumer);
    assert_non_null(consumer);
    consumer->n_slots = 1;
    assert_ok(wire_msg_new(&consumer->slots[0].msg));
    daemon->consumer_seats = consumer;
    daemon->n_consumers = 1;
    consumers_deliver(daemon);
    assert_ptr_equal(daemon->consumer_seats, consumer);
}

static void test_consumer_is_away__bye_is_still_read(void **state)
{
    (void)state;
    dispatch daemon;
    wire_msg *bye = NULL;
    row_cannot_be_sent(&daemon);
    assert_ok(wire_json_message(KIND_BYE, 0, "{}", 2, NULL, &bye));
    peer_message(&daemon, DOOR_CONSUMERS, &daemon.consumer_seats->peer, bye);
    assert_null(daemon.consumer_seats);
    assert_null(strstr(logged, "gone"));
    assert_non_null(strstr(logged, "consumer left"));
    wire_msg_free(&bye);
}

static void test_consumer_is_away__without_bye_it_is_closed(void **state)
{
    (void)state;
    dispatch daemon;
    row_cannot_be_sent(&daemon);
    consumers_drop_dead(&daemon, 2);
    assert_non_null(daemon.consumer_seats);
    consumers_drop_dead(&daemon, INT64_C(2000000000));
    assert_null(daemon.consumer_seats);
    assert_non_null(strstr(logged, "consumer gone: Host unreachable"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_consumers_deliver__end_waits_for_room),
        cmocka_unit_test(test_consumer_is_away__bye_is_still_read),
        cmocka_unit_test(test_consumer_is_away__without_bye_it_is_closed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
