/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of wire.h: messages between threads over ipc and loopback tcp, endpoints that are refused
 * or in use, peers that are missing, have gone, send nonsense or have another version, and key
 * files. */
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/row/frame.h"
#include "proto/wire/wire.h"
#include "tests/harness.h"

enum { WAIT_MS = 20000 }; /* far more than is needed, because machines can be slow */

typedef struct place {
    char *folder;
    char endpoint[400];
} place;

static place place_ipc(void)
{
    place spot = {.folder = harness_temp()};
    snprintf(spot.endpoint, sizeof spot.endpoint, "ipc://%s/s", spot.folder);
    return spot;
}

static place place_tcp(void)
{
    place spot = {.folder = NULL};
    snprintf(spot.endpoint, sizeof spot.endpoint, "tcp://127.0.0.1:%d", harness_port(NULL));
    return spot;
}

static void place_done(place *spot)
{
    if (spot->folder)
        harness_remove(&spot->folder);
}

/* The other side of round_trip(): sends a message and expects it back twice in one. */
static void *echo_client(void *endpoint)
{
    wire *net = NULL;
    wire_socket *socket = NULL;
    wire_msg *message = NULL;
    uint8_t big[100000];
    memset(big, 7, sizeof big);
    assert_ok(wire_new(&net));
    assert_ok(wire_connect(net, endpoint, &socket));
    assert_ok(wire_msg_new(&message));
    assert_ok(wire_msg_add(message, "head", 4));
    assert_ok(wire_msg_add(message, big, sizeof big));
    assert_ok(wire_msg_add(message, NULL, 0));
    assert_ok(wire_send(socket, NULL, message));
    assert_int_equal(wire_msg_parts(message), 0);
    assert_ok(wire_recv(socket, WAIT_MS, NULL, message));
    assert_int_equal(wire_msg_parts(message), 6);
    assert_int_equal(wire_msg_bytes(message), 2 * (4 + sizeof big));
    assert_memory_equal(wire_msg_part(message, 4).data, big, sizeof big);
    wire_msg_free(&message);
    wire_close(&socket);
    wire_free(&net);
    return NULL;
}

static void round_trip(place spot)
{
    wire *net = NULL;
    wire_socket *socket = NULL;
    wire_msg *message = NULL, *twice = NULL;
    wire_peer from;
    pthread_t thread;
    assert_ok(wire_new(&net));
    assert_ok(wire_bind(net, spot.endpoint, NULL, &socket));
    assert_ok(wire_msg_new(&message));
    assert_ok(wire_msg_new(&twice));
    assert_int_equal(pthread_create(&thread, NULL, echo_client, spot.endpoint), 0);
    wire_wait wait = {.socket = socket, .fd = -1};
    assert_ok(wire_poll(&wait, 1, WAIT_MS));
    assert_true(wait.ready);
    assert_ok(wire_recv(socket, WAIT_MS, &from, message));
    assert_true(from.size > 0);
    assert_int_equal(wire_msg_parts(message), 3);
    assert_ok(wire_msg_share(twice, message));
    assert_ok(wire_msg_move(twice, message));
    assert_int_equal(wire_msg_parts(message), 0);
    assert_ok(wire_send(socket, &from, twice));
    pthread_join(thread, NULL);
    wire_msg_free(&message);
    wire_msg_free(&twice);
    wire_close(&socket);
    wire_free(&net);
    place_done(&spot);
}

static void test_wire__ipc_round_trip(void **state)
{
    (void)state;
    round_trip(place_ipc());
}

/* A folder's path may be longer than a socket's address can be, because the socket is reached
 * through the folder. A file name that long is refused. */
static void test_wire__ipc_in_a_deep_folder(void **state)
{
    (void)state;
    place spot = {.folder = harness_temp()};
    wire *net = NULL;
    wire_socket *socket = NULL;
    char path[600];
    int length = snprintf(path, sizeof path, "%s", spot.folder);
    for (int i = 0; i < 3; i++) {
        length += snprintf(path + length, sizeof path - (size_t)length, "/%050d", i);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    snprintf(spot.endpoint, sizeof spot.endpoint, "ipc://%s/s", path);
    assert_true(strlen(spot.endpoint) > 150);
    place same = spot;
    same.folder = NULL;
    round_trip(same);
    assert_int_equal(access(spot.endpoint + 6, F_OK), -1); /* wire_close has removed the socket */
    assert_ok(wire_new(&net));
    snprintf(path + length, sizeof path - (size_t)length, "/%0100d", 0);
    char longer[620];
    snprintf(longer, sizeof longer, "ipc://%s", path);
    assert_fails(ST_CONFIG, wire_bind(net, longer, NULL, &socket), "shorter");
    snprintf(path + length, sizeof path - (size_t)length, "/absent/s");
    snprintf(longer, sizeof longer, "ipc://%s", path);
    assert_fails(ST_UNAVAILABLE, wire_bind(net, longer, NULL, &socket), "absent");
    wire_free(&net);
    place_done(&spot);
}

/* A row of as many images as a row may have, with header, block and tag. */
static void test_wire__the_longest_row(void **state)
{
    enum { PARTS = FRAME_MAX_IMAGES + 3 };
    (void)state;
    place spot = place_ipc();
    wire *net = NULL;
    wire_socket *daemon = NULL, *worker = NULL;
    wire_msg *message = NULL;
    wire_peer from;
    assert_ok(wire_new(&net));
    assert_ok(wire_bind(net, spot.endpoint, NULL, &daemon));
    assert_ok(wire_connect(net, spot.endpoint, &worker));
    assert_ok(wire_msg_new(&message));
    for (int k = 0; k < PARTS; k++)
        assert_ok(wire_msg_add(message, "part", 4));
    assert_ok(wire_send(worker, NULL, message));
    assert_ok(wire_recv(daemon, WAIT_MS, &from, message));
    assert_int_equal(wire_msg_parts(message), PARTS);
    wire_msg_free(&message);
    wire_close(&worker);
    wire_close(&daemon);
    wire_free(&net);
    place_done(&spot);
}

static void test_wire__tcp_round_trip(void **state)
{
    (void)state;
    round_trip(place_tcp());
}

static void test_wire_bind__in_use(void **state)
{
    (void)state;
    place places[2] = {place_ipc(), place_tcp()};
    for (int i = 0; i < 2; i++) {
        wire *net = NULL;
        wire_socket *first = NULL, *second = NULL;
        assert_ok(wire_new(&net));
        assert_ok(wire_bind(net, places[i].endpoint, NULL, &first));
        assert_fails(ST_UNAVAILABLE, wire_bind(net, places[i].endpoint, NULL, &second),
                     "in use by");
        assert_non_null(strstr(status_text(), "prepd.endpoint"));
        assert_non_null(strstr(status_text(), i ? places[i].endpoint : places[i].folder));
        wire_close(&first);
        wire_free(&net);
        place_done(&places[i]);
    }
}

static void test_wire_bind__stale_file_is_replaced(void **state)
{
    (void)state;
    place spot = place_ipc();
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat info;
    wire *net = NULL;
    wire_socket *bound = NULL;
    strcpy(address.sun_path, spot.endpoint + 6);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    close(fd); /* the socket file stays, as after SIGKILL */
    assert_ok(wire_new(&net));
    assert_ok(wire_bind(net, spot.endpoint, NULL, &bound));
    wire_close(&bound);
    assert_int_equal(stat(address.sun_path, &info), -1);
    wire_free(&net);

    FILE *file = fopen(address.sun_path, "w"); /* a file that is not a socket is left alone */
    assert_non_null(file);
    fclose(file);
    assert_ok(wire_new(&net));
    assert_fails(ST_CANT_CREATE, wire_bind(net, spot.endpoint, NULL, &bound), "not a socket");
    assert_int_equal(stat(address.sun_path, &info), 0);
    wire_free(&net);
    place_done(&spot);
}

static void test_wire__wrong_endpoints_are_refused(void **state)
{
    (void)state;
    wire *net = NULL;
    wire_socket *socket = NULL;
    char *beside = NULL;
    char longer[200] = "ipc:///tmp/";
    memset(longer + 11, 'x', 120);
    assert_ok(wire_new(&net));
    assert_fails(ST_CONFIG, wire_bind(net, longer, NULL, &socket), "too long");
    assert_fails(ST_CONFIG, wire_bind(net, "tcp://0.0.0.0:5555", NULL, &socket), "CURVE keys");
    assert_fails(ST_CONFIG, wire_connect(net, "tcp://192.168.0.1:5555", &socket),
                 "the daemon's machine");
    assert_fails(ST_CONFIG, wire_bind(net, "tcp://*:5555", NULL, &socket), "CURVE keys");
    assert_fails(ST_CONFIG, wire_bind(net, "tcp://127.0.0.1", NULL, &socket), "PORT");
    assert_fails(ST_CONFIG, wire_bind(net, "tcp://127.0.0.1:70000", NULL, &socket), "65535");
    assert_fails(ST_CONFIG, wire_bind(net, "udp://127.0.0.1:7", NULL, &socket),
                 "ipc://PATH or tcp://HOST:PORT");
    assert_fails(ST_CONFIG, wire_bind(net, "ipc://", NULL, &socket), "PATH");
    assert_fails(ST_CANT_CREATE, wire_bind(net, "ipc:///nowhere/at/all", NULL, &socket),
                 "/nowhere/at/: no socket can be made");
    wire_free(&net);

    assert_ok(wire_beside("ipc://a.sock", 1, &beside));
    assert_string_equal(beside, "ipc://a.sock.workers");
    free(beside);
    assert_ok(wire_beside("ipc://a.sock", 2, &beside));
    assert_string_equal(beside, "ipc://a.sock.control");
    free(beside);
    assert_ok(wire_beside("tcp://localhost:5000", 2, &beside));
    assert_string_equal(beside, "tcp://127.0.0.1:5002");
    free(beside);
    assert_fails(ST_CONFIG, wire_beside("tcp://127.0.0.1:65535", 1, &beside), "ports after it");
}

/* A closed socket's monitor is freed later, by a thread of ZeroMQ. 200 connections in a row must
 * not run out of descriptors. */
static void test_wire_connect__200_times(void **state)
{
    (void)state;
    wire *net;
    assert_ok(wire_new(&net));
    for (int k = 0; k < 200; k++) {
        wire_socket *socket;
        assert_ok(wire_connect(net, "tcp://127.0.0.1:1", &socket));
        wire_close(&socket);
    }
    wire_free(&net);
}

static void test_wire_send__unroutable_peer(void **state)
{
    (void)state;
    place spot = place_ipc();
    wire *net = NULL;
    wire_socket *socket = NULL;
    wire_peer nobody = {.id = "\0abcd", .size = 5};
    wire_msg *message = NULL;
    assert_ok(wire_new(&net));
    assert_ok(wire_bind(net, spot.endpoint, NULL, &socket));
    assert_ok(wire_msg_new(&message));
    assert_ok(wire_msg_add(message, "x", 1));
    assert_fails(ST_UNAVAILABLE, wire_send(socket, &nobody, message), "peer 0061626364");
    assert_int_equal(wire_msg_parts(message), 1); /* the message still belongs to the caller */
    wire_msg_free(&message);
    wire_close(&socket);
    wire_free(&net);
    place_done(&spot);
}

/* A DEALER notices at once that its peer has gone, but first hands out what had arrived. */
static void test_wire_recv__peer_goes(void **state)
{
    (void)state;
    place spot = place_ipc();
    wire *server = NULL, *net = NULL;
    wire_socket *bound = NULL, *socket = NULL;
    wire_peer from;
    wire_msg *message = NULL;
    assert_ok(wire_new(&server));
    assert_ok(wire_new(&net));
    assert_ok(wire_bind(server, spot.endpoint, NULL, &bound));
    assert_ok(wire_connect(net, spot.endpoint, &socket));
    assert_ok(wire_msg_new(&message));
    assert_fails(ST_TIMEOUT, wire_recv(socket, 20, NULL, message), "nothing came");
    assert_ok(wire_send_json(socket, NULL, KIND_BYE, 3, "{}", 2));
    assert_ok(wire_recv(bound, WAIT_MS, &from, message));
    assert_ok(wire_send_json(bound, &from, KIND_END, 9, "{\"rows\":9}", 10));
    wire_close(&bound);
    wire_free(&server);
    wire_wait waits[2] = {{.socket = socket}, {.fd = -1}};
    assert_ok(wire_poll(waits, 2, WAIT_MS));
    assert_true(waits[0].ready);
    assert_false(waits[1].ready);

    frame head;
    json_value *value = NULL;
    assert_ok(wire_recv(socket, WAIT_MS, NULL, message));
    assert_ok(wire_read_json(message, "daemon", &head, &value));
    assert_int_equal(head.kind, KIND_END);
    assert_int_equal(head.row, 9);
    assert_int_equal(json_int(json_find(value, "rows"), 0), 9);
    json_free(&value);
    assert_fails(ST_UNAVAILABLE, wire_recv(socket, WAIT_MS, NULL, message),
                 "closed the connection or died");
    assert_fails(ST_UNAVAILABLE, wire_send_json(socket, NULL, KIND_BYE, 0, "{}", 2), "closed");
    wire_msg_free(&message);
    wire_close(&socket);
    wire_free(&net);
    place_done(&spot);
}

static void test_wire_poll__descriptor(void **state)
{
    (void)state;
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    wire_wait waits[2] = {{.fd = fds[0]}, {.fd = -1}};
    assert_ok(wire_poll(waits, 2, 10));
    assert_false(waits[0].ready);
    assert_int_equal(write(fds[1], "x", 1), 1);
    assert_ok(wire_poll(waits, 2, WAIT_MS));
    assert_true(waits[0].ready);
    close(fds[0]);
    close(fds[1]);
}

/* Reads a message of head and body as a control message. */
static status read_as_json(const void *head, size_t head_size, const char *body, frame *out)
{
    wire_msg *message = NULL;
    json_value *value = NULL;
    assert_ok(wire_msg_new(&message));
    assert_ok(wire_msg_add(message, head, head_size));
    if (body)
        assert_ok(wire_msg_add(message, body, strlen(body)));
    status st = wire_read_json(message, "peer 7", out, &value);
    json_free(&value);
    wire_msg_free(&message);
    return st;
}

static void test_wire_read_json__refuses_hostile_messages(void **state)
{
    (void)state;
    uint8_t head[FRAME_BYTES];
    frame header = {.kind = KIND_HELLO, .row = 5, .block_bytes = 2}, got;
    frame_encode(&header,
                 head); /* without a digest: accepted, because a client need not have XXH3 */
    assert_ok(read_as_json(head, sizeof head, "{}", &got));
    assert_int_equal(got.row, 5);
    assert_fails(ST_PROTOCOL, read_as_json(head, sizeof head, "{ }", &got), "header says 2");
    assert_fails(ST_PROTOCOL, read_as_json(head, sizeof head, "[]", &got), "expected an object");
    assert_fails(ST_PROTOCOL, read_as_json(head, sizeof head, "{x", &got), "hello");
    assert_fails(ST_PROTOCOL, read_as_json(head, sizeof head, NULL, &got), "1 parts");
    header.digest = hash_bytes("{}", 2);
    frame_encode(&header, head);
    assert_ok(read_as_json(head, sizeof head, "{}", &got));
    assert_fails(ST_PROTOCOL, read_as_json(head, sizeof head, "[]", &got), "hash");
    assert_fails(ST_PROTOCOL, read_as_json("GET / HTTP/1.1", 14, "{}", &got), "not a Tessera");
    assert_fails(ST_PROTOCOL, read_as_json("", 0, "{}", &got), "peer 7");
    assert_fails(ST_PROTOCOL, read_as_json(head, 63, "{}", &got), "63 bytes");
    head[4] = 2;
    assert_fails(ST_PROTOCOL, read_as_json(head, sizeof head, "{}", &got), "version 2");
    assert_non_null(strstr(status_text(), "version 1"));
    for (int i = 0; i < FRAME_BYTES * 8; i++) { /* each single bit */
        frame_encode(&header, head);
        head[i / 8] ^= (uint8_t)(1 << i % 8);
        assert_int_equal(read_as_json(head, sizeof head, "{}", &got), ST_PROTOCOL);
    }
}

static void test_wire_error__carries_the_reason(void **state)
{
    (void)state;
    json_value *value = NULL;
    const char *text = "{\"code\":\"ST_CONFIG\",\"message\":\"training.seed: 1 here, 2 there\"}";
    assert_ok(json_parse(text, strlen(text), "test", &value));
    assert_fails(ST_CONFIG, wire_error(value, "prepd"), "training.seed: 1 here, 2 there");
    json_free(&value);
    text = "{\"code\":\"ST_OK\"}";
    assert_ok(json_parse(text, strlen(text), "test", &value));
    assert_fails(ST_PROTOCOL, wire_error(value, "prepd"), "no reason given");
    json_free(&value);
}

/* Reads the folder's file of allowed keys. */
static void read_allowed(const char *keys, char *out, size_t size)
{
    char path[400];
    snprintf(path, sizeof path, "%s/allowed", keys);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    out[fread(out, 1, size - 1, file)] = 0;
    fclose(file);
}

static void append_allowed(const char *keys, const char *text)
{
    char path[400];
    snprintf(path, sizeof path, "%s/allowed", keys);
    FILE *file = fopen(path, "a");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void test_wire_keys__each_has_its_own_line(void **state)
{
    (void)state;
    char *folder = harness_temp(), keys[300], text[1000];
    wire *net = NULL;
    snprintf(keys, sizeof keys, "%s/k", folder);
    assert_fails(ST_NO_INPUT, wire_keys_make(keys, "one", WIRE_ROWS), "without --client");
    assert_ok(wire_keys_make(keys, NULL, 0));
    append_allowed(keys, "# by hand"); /* the line has no newline */
    assert_ok(wire_keys_make(keys, "one", WIRE_ROWS));
    assert_ok(wire_keys_make(keys, "two", WIRE_ROWS));
    read_allowed(keys, text, sizeof text);
    assert_non_null(strstr(text, "\n# by hand\n"));
    assert_non_null(strstr(text, " client rows,work,control\n"));
    assert_non_null(strstr(text, " one rows\n"));
    assert_null(strstr(text, "\n\n"));
    assert_ok(wire_new(&net));
    assert_ok(wire_serve_keys(net, keys));
    wire_free(&net);
    assert_ok(wire_new(&net));
    snprintf(text, sizeof text, "%s/one", keys);
    assert_fails(ST_NO_INPUT, wire_serve_keys(net, text), "a client's folder");
    assert_ok(wire_use_keys(net, text));
    wire_free(&net);
    assert_fails(ST_CANT_CREATE, wire_keys_make(keys, NULL, 0), "another --out");
    assert_fails(ST_CANT_CREATE, wire_keys_make(keys, "two", WIRE_ROWS), "another --client");
    harness_remove(&folder);
}

/* From here on no file can grow beyond this many bytes, as on a full disk. */
static void disk_of(rlim_t bytes)
{
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* A failed attempt leaves nothing that keeps the next one from succeeding once there is room. */
static void test_wire_keys__full_disk(void **state)
{
    (void)state;
    char *folder = harness_temp(), keys[300], before[1000], after[1000];
    snprintf(keys, sizeof keys, "%s/k", folder);
    disk_of(45); /* daemon.key does not fit */
    status st = wire_keys_make(keys, NULL, 0);
    disk_of(RLIM_INFINITY);
    assert_int_equal(st, ST_IO);
    assert_ok(wire_keys_make(keys, NULL, 0));
    append_allowed(
        keys, "# a line that takes the room that the next key would have needed, and it is full");
    append_allowed(keys, "\n");
    read_allowed(keys, before, sizeof before);
    disk_of(strlen(before) + 9); /* the new line of the file "allowed" does not fit */
    st = wire_keys_make(keys, "site", WIRE_ROWS);
    disk_of(RLIM_INFINITY);
    assert_int_equal(st, ST_IO);
    read_allowed(keys, after, sizeof after);
    assert_string_equal(after, before);
    assert_ok(wire_keys_make(keys, "site", WIRE_ROWS));
    harness_remove(&folder);
}

static int io_threads_here(void)
{
    int count = 0;
    DIR *all = opendir("/proc/self/task");
    assert_non_null(all);
    for (struct dirent *entry; (entry = readdir(all));) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
        FILE *file = fopen(path, "re");
        if (!file)
            continue;
        count += fgets(name, sizeof name, file) && strstr(name, "/IO/");
        fclose(file);
    }
    closedir(all);
    return count;
}

static void test_wire_io_threads__are_as_many_as_asked_for(void **state)
{
    (void)state;
    enum { THREADS = 3 };
    const wire_limits last = {.io_threads = 1 << (THREADS - 1)},
                      none = {.io_threads = 1 << THREADS};
    place spot = place_ipc();
    wire *net = NULL;
    wire_socket *socket = NULL;
    const int before = io_threads_here();
    assert_ok(wire_new(&net));
    assert_ok(wire_io_threads(net, THREADS));
    assert_fails(ST_CANT_CREATE, wire_bind(net, spot.endpoint, &none, &socket), spot.endpoint);
    assert_ok(wire_bind(net, spot.endpoint, &last, &socket));
    /* a thread sets its name only when it begins to run */
    for (int ms = 0; io_threads_here() - before != THREADS; ms++) {
        assert_true(ms < WAIT_MS);
        usleep(1000);
    }
    wire_close(&socket);
    wire_free(&net);
    place_done(&spot);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wire_io_threads__are_as_many_as_asked_for),
        cmocka_unit_test(test_wire__ipc_round_trip),
        cmocka_unit_test(test_wire__ipc_in_a_deep_folder),
        cmocka_unit_test(test_wire__the_longest_row),
        cmocka_unit_test(test_wire__tcp_round_trip),
        cmocka_unit_test(test_wire_bind__in_use),
        cmocka_unit_test(test_wire_bind__stale_file_is_replaced),
        cmocka_unit_test(test_wire__wrong_endpoints_are_refused),
        cmocka_unit_test(test_wire_connect__200_times),
        cmocka_unit_test(test_wire_send__unroutable_peer),
        cmocka_unit_test(test_wire_recv__peer_goes),
        cmocka_unit_test(test_wire_poll__descriptor),
        cmocka_unit_test(test_wire_read_json__refuses_hostile_messages),
        cmocka_unit_test(test_wire_error__carries_the_reason),
        cmocka_unit_test(test_wire_keys__each_has_its_own_line),
        cmocka_unit_test(test_wire_keys__full_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
