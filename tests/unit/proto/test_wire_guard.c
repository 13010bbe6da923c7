/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of wire_guard.h: a peer that sends more than is read of it is disconnected at its share,
 * while the others and those known to be honest go on. The peers are plain TCP sockets that write
 * ZMTP byte by byte. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "proto/wire/wire.h"
#include "proto/wire/wire_socket.h"
#include "tests/harness.h"

enum {
    IO_THREADS = 3,
    SHARE = 1 << 20,
    ALL = 4 << 20,
    KNOWN = 16 << 20,
    WAIT_MS = 20000,
    STEP_MS = 30
};

typedef struct fixture {
    int port;
    wire *net;
    wire_socket *socket;
    wire_msg *message;
    int64_t cut;
    char last[WIRE_REFUSED_TEXT];
} fixture;

static void begin_with(fixture *setup, int share, const char *keys)
{
    const wire_limits limits = {.part_bytes = KNOWN,
                                .unsent = 64,
                                .unread_bytes = share,
                                .all_unread_bytes = ALL,
                                .known_bytes = KNOWN};
    char address[64];
    snprintf(address, sizeof address, "tcp://127.0.0.1:%d", setup->port);
    assert_ok(wire_new(&setup->net));
    assert_ok(wire_io_threads(setup->net, IO_THREADS));
    if (keys)
        assert_ok(wire_serve_keys(setup->net, keys));
    assert_ok(wire_bind(setup->net, address, &limits, &setup->socket));
    assert_ok(wire_msg_new(&setup->message));
}

static fixture begin_guard(void)
{
    fixture setup = {.port = harness_port(NULL)};
    begin_with(&setup, SHARE, NULL);
    return setup;
}

static void end_guard(fixture *setup)
{
    wire_msg_free(&setup->message);
    wire_close(&setup->socket);
    wire_free(&setup->net);
}

/* Waits for at most STEP_MS, reads what has come and returns how many messages that was. */
static int poll_socket(fixture *setup, wire_peer *from)
{
    wire_wait wait = {.socket = setup->socket};
    int count = 0;
    assert_ok(wire_poll(&wait, 1, STEP_MS));
    while (wire_recv(setup->socket, 0, from, setup->message) == ST_OK)
        count++;
    setup->cut += wire_were_cut(setup->socket, setup->last);
    return count;
}

static void say_bytes(int fd, const void *data, size_t size)
{
    assert_int_equal(send(fd, data, size, MSG_NOSIGNAL), size);
}

/* Sends a message and waits until it arrives. */
static void say_hi(fixture *setup, int fd, wire_peer *from)
{
    say_bytes(fd, "\0\2hi", 4);
    for (int i = 0; poll_socket(setup, from) == 0; i++)
        assert_true(i < WAIT_MS / STEP_MS);
}

/* Connects as a DEALER would: the handshake of ZMTP 3.0 without security. Returns the
 * descriptor. */
static int peer(fixture *setup)
{
    static const uint8_t ready[] = "\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06"
                                   "DEALER";
    uint8_t greeting[64] = {0xff, [9] = 0x7f, 3, 0, 'N', 'U', 'L', 'L'}, theirs[64];
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)setup->port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof address), 0);
    say_bytes(fd, greeting, sizeof greeting);
    assert_int_equal(recv(fd, theirs, sizeof theirs, MSG_WAITALL), sizeof theirs);
    say_bytes(fd, ready, sizeof ready - 1);
    return fd;
}

/* Sends this many bytes of parts, each of which says that more will follow. False if the connection
 * is cut meanwhile. */
static bool parts_without_end(fixture *setup, int fd, size_t bytes)
{
    static const uint8_t part[1 << 12] = {[0] = 3, [7] = 0x0f, 0xf7}; /* 9 + 4087 bytes */
    const int64_t late = clock_ns() + (int64_t)WAIT_MS * 1000000;
    for (size_t sent = 0; sent < bytes;) {
        const size_t at = sent % sizeof part;
        ssize_t got = send(fd, part + at, sizeof part - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        assert_true(clock_ns() < late);
        if (got < 0 && errno != EAGAIN)
            return false;
        if (got < 0 || sent / SHARE != (sent + (size_t)got) / SHARE)
            poll_socket(setup, NULL);
        if (setup->cut)
            return false;
        sent += got < 0 ? 0 : (size_t)got;
    }
    poll_socket(setup, NULL);
    poll_socket(setup, NULL); /* so that the guard looks once more after the last byte */
    return setup->cut == 0;
}

static void test_wire_guard__cuts_a_message_without_end(void **state)
{
    (void)state;
    fixture setup = begin_guard();
    const int bad = peer(&setup), good = peer(&setup);
    assert_true(parts_without_end(&setup, bad, SHARE / 2));
    assert_false(parts_without_end(&setup, bad, 64 << 20));
    assert_int_equal(setup.cut, 1);
    assert_non_null(strstr(setup.last, "127.0.0.1 port "));
    say_hi(&setup, good, NULL);
    close(bad);
    close(good);
    end_guard(&setup);
}

static void test_wire_guard__limits_all_peers_together(void **state)
{
    (void)state;
    enum { PEERS = 8 };
    fixture setup = begin_guard();
    int fd[PEERS];
    for (int i = 0; i < PEERS; i++) { /* each stays below its own share */
        fd[i] = peer(&setup);
        parts_without_end(&setup, fd[i], SHARE * 7 / 10);
    }
    poll_socket(&setup, NULL);
    assert_in_range(setup.cut, 1, PEERS - 1);
    for (int i = 0; i < PEERS; i++)
        close(fd[i]);
    end_guard(&setup);
}

static void test_wire_guard__a_known_peer_may_send_more(void **state)
{
    (void)state;
    fixture setup = begin_guard();
    wire_peer from;
    const int fd = peer(&setup);
    say_hi(&setup, fd, &from);
    wire_know(setup.socket, &from);
    assert_true(parts_without_end(&setup, fd, 2 * ALL));
    assert_false(parts_without_end(&setup, fd, 2 * KNOWN));
    assert_int_equal(setup.cut, 1);
    close(fd);
    end_guard(&setup);
}

/* The descriptor of the connection that was accepted at this port, or -1. */
static int accepted_at(int port)
{
    enum { MOST = 1024 };
    for (int fd = 0; fd < MOST; fd++) {
        struct sockaddr_in address = {0}, far = {0};
        socklen_t size = sizeof address, far_size = sizeof far;
        if (getsockname(fd, (struct sockaddr *)&address, &size) == 0 &&
            address.sin_family == AF_INET && ntohs(address.sin_port) == port &&
            getpeername(fd, (struct sockaddr *)&far, &far_size) == 0)
            return fd;
    }
    return -1;
}

/* When a socket reads the event that it was given a descriptor, that descriptor may already be
 * closed and belong to a connection of another socket, which must be left alone. */
static void test_wire_guard__spares_a_connection_of_another_socket(void **state)
{
    (void)state;
    enum { LOW = 64 << 10 };
    fixture low = {.port = harness_port(NULL)};
    begin_with(&low, LOW, NULL);
    fixture other = begin_guard();
    const int first = peer(&low);
    const int there = accepted_at(low.port);
    assert_true(there >= 0);
    close(first);
    /* until ZeroMQ closes it; the events of low are not read yet */
    for (int i = 0; fcntl(there, F_GETFD) != -1; i++) {
        assert_true(i < WAIT_MS);
        usleep(1000);
    }
    const int second = peer(&other);
    assert_int_equal(accepted_at(other.port), there);
    assert_true(parts_without_end(&other, second, SHARE / 2));
    poll_socket(&low, NULL);
    poll_socket(&low, NULL);
    assert_int_equal(low.cut, 0);
    assert_true(parts_without_end(&other, second, SHARE / 4));
    close(second);
    end_guard(&low);
    end_guard(&other);
}

/* Sends parts with every form of frame header. If the guard counted a part wrong by one byte, the
 * sum would soon exceed the share. */
static void send_counted_parts(const char *keys)
{
    enum { LOW = 64 << 10, PARTS = 60, MESSAGES = 2000 };
    static const size_t sizes[] = {0, 100, 222, 223, 255, 256};
    uint8_t part[256] = {0};
    char address[64];
    fixture setup = {.port = harness_port(NULL)};
    wire *net = NULL;
    wire_socket *socket = NULL;
    wire_msg *message = NULL;
    assert_ok(wire_new(&net));
    begin_with(&setup, LOW, keys);
    if (keys)
        assert_ok(wire_use_keys(net, keys));
    snprintf(address, sizeof address, "tcp://127.0.0.1:%d", setup.port);
    assert_ok(wire_connect(net, address, &socket));
    assert_ok(wire_msg_new(&message));
    for (int i = 0; i < MESSAGES; i++) {
        for (size_t k = 0; k < PARTS; k++)
            assert_ok(wire_msg_add(message, part, sizes[k % 6]));
        assert_ok(wire_send(socket, NULL, message));
        while (poll_socket(&setup, NULL) == 0)
            ;
    }
    assert_int_equal(setup.cut, 0);
    wire_msg_free(&message);
    wire_close(&socket);
    wire_free(&net);
    end_guard(&setup);
}

static void test_wire_guard__counts_exactly(void **state)
{
    (void)state;
    send_counted_parts(NULL);
}

static void test_wire_guard__counts_exactly_with_keys(void **state)
{
    (void)state;
    char *folder = harness_temp(), keys[400];
    snprintf(keys, sizeof keys, "%s/k", folder);
    assert_ok(wire_keys_make(keys, NULL, 0));
    send_counted_parts(keys);
    harness_remove(&folder);
}

/* Makes a connection that no monitor reports, like one whose messages arrive on another of ZeroMQ's
 * threads before the event of its acceptance. Returns our end; *out_theirs is the other one. */
static int connection_of_ours(int port, int *out_theirs)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one), 0);
    assert_int_equal(bind(listener, (const struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(listener, 1), 0);
    *out_theirs = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(*out_theirs, (const struct sockaddr *)&address, sizeof address), 0);
    const int fd = accept(listener, NULL, NULL);
    assert_true(fd >= 0);
    close(listener);
    return fd;
}

/* Sends this many bytes and takes them off the socket: the kernel has counted them as received, but
 * they have become no message. */
static void fill_share(int theirs, int fd, size_t bytes)
{
    static uint8_t all[1 << 16], taken[1 << 16];
    for (size_t sent = 0; sent < bytes; sent += sizeof all) {
        say_bytes(theirs, all, sizeof all);
        assert_int_equal(recv(fd, taken, sizeof taken, MSG_WAITALL), sizeof taken);
    }
}

static void test_wire_guard__a_connection_is_found_by_its_messages(void **state)
{
    (void)state;
    const wire_limits limits = {.unread_bytes = SHARE, .all_unread_bytes = ALL};
    const int port = harness_port(NULL);
    char *folder = harness_temp(), address[400], last[WIRE_REFUSED_TEXT];
    wire *net = NULL;
    wire_socket *socket = NULL;
    wire_guard *guard = NULL;
    int theirs;
    snprintf(address, sizeof address, "ipc://%s/s", folder);
    assert_ok(wire_new(&net));
    assert_ok(wire_bind(net, address, NULL, &socket));
    assert_ok(wire_guard_new(net, socket->socket, "here", port, &limits, false, &guard));
    const int fd = connection_of_ours(port, &theirs);
    for (int i = 0; i < 3; i++) { /* together over the limit, but each is read in time */
        fill_share(theirs, fd, SHARE / 2);
        wire_guard_count(guard, fd, SHARE / 2);
    }
    wire_guard_look(guard);
    assert_int_equal(wire_guard_were_cut(guard, last), 0);
    fill_share(theirs, fd, SHARE + SHARE / 2);
    usleep(2000 * WIRE_GUARD_MS); /* until the guard looks again */
    wire_guard_look(guard);
    assert_int_equal(wire_guard_were_cut(guard, last), 1);
    close(theirs);
    close(fd);
    wire_guard_free(&guard);
    wire_close(&socket);
    wire_free(&net);
    harness_remove(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wire_guard__cuts_a_message_without_end),
        cmocka_unit_test(test_wire_guard__limits_all_peers_together),
        cmocka_unit_test(test_wire_guard__a_known_peer_may_send_more),
        cmocka_unit_test(test_wire_guard__spares_a_connection_of_another_socket),
        cmocka_unit_test(test_wire_guard__counts_exactly),
        cmocka_unit_test(test_wire_guard__counts_exactly_with_keys),
        cmocka_unit_test(test_wire_guard__a_connection_is_found_by_its_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
