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

#include "proto/frame.h"
#include "proto/wire.h"
#include "tests/harness.h"

enum { WAIT_MS = 20000 }; /* far more than is needed, because machines can be slow */

typedef struct place {
    char *folder;
    char endpoint[400];
} place;

static place place_ipc(void)
{
    place p = {.folder = harness_temp()};
    snprintf(p.endpoint, sizeof p.endpoint, "ipc://%s/s", p.folder);
    return p;
}

static place place_tcp(void)
{
    place p = {.folder = NULL};
    snprintf(p.endpoint, sizeof p.endpoint, "tcp://127.0.0.1:%d", harness_port(NULL));
    return p;
}

static void place_done(place *p)
{
    if (p->folder)
        harness_remove(&p->folder);
}

/* The other side of round_trip(): sends a message and expects it back twice in one. */
static void *echo_client(void *endpoint)
{
    wire *w = NULL;
    wire_socket *s = NULL;
    wire_msg *m = NULL;
    uint8_t big[100000];
    memset(big, 7, sizeof big);
    assert_ok(wire_new(&w));
    assert_ok(wire_connect(w, endpoint, &s));
    assert_ok(wire_msg_new(&m));
    assert_ok(wire_msg_add(m, "head", 4));
    assert_ok(wire_msg_add(m, big, sizeof big));
    assert_ok(wire_msg_add(m, NULL, 0));
    assert_ok(wire_send(s, NULL, m));
    assert_int_equal(wire_msg_parts(m), 0);
    assert_ok(wire_recv(s, WAIT_MS, NULL, m));
    assert_int_equal(wire_msg_parts(m), 6);
    assert_int_equal(wire_msg_bytes(m), 2 * (4 + sizeof big));
    assert_memory_equal(wire_msg_part(m, 4).data, big, sizeof big);
    wire_msg_free(&m);
    wire_close(&s);
    wire_free(&w);
    return NULL;
}

static void round_trip(place p)
{
    wire *w = NULL;
    wire_socket *s = NULL;
    wire_msg *m = NULL, *twice = NULL;
    wire_peer from;
    pthread_t thread;
    assert_ok(wire_new(&w));
    assert_ok(wire_bind(w, p.endpoint, NULL, &s));
    assert_ok(wire_msg_new(&m));
    assert_ok(wire_msg_new(&twice));
    assert_int_equal(pthread_create(&thread, NULL, echo_client, p.endpoint), 0);
    wire_wait wait = {.socket = s, .fd = -1};
    assert_ok(wire_poll(&wait, 1, WAIT_MS));
    assert_true(wait.ready);
    assert_ok(wire_recv(s, WAIT_MS, &from, m));
    assert_true(from.size > 0);
    assert_int_equal(wire_msg_parts(m), 3);
    assert_ok(wire_msg_share(twice, m));
    assert_ok(wire_msg_move(twice, m));
    assert_int_equal(wire_msg_parts(m), 0);
    assert_ok(wire_send(s, &from, twice));
    pthread_join(thread, NULL);
    wire_msg_free(&m);
    wire_msg_free(&twice);
    wire_close(&s);
    wire_free(&w);
    place_done(&p);
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
    place p = {.folder = harness_temp()};
    wire *w = NULL;
    wire_socket *s = NULL;
    char path[600];
    int n = snprintf(path, sizeof path, "%s", p.folder);
    for (int i = 0; i < 3; i++) {
        n += snprintf(path + n, sizeof path - (size_t)n, "/%050d", i);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    snprintf(p.endpoint, sizeof p.endpoint, "ipc://%s/s", path);
    assert_true(strlen(p.endpoint) > 150);
    place same = p;
    same.folder = NULL;
    round_trip(same);
    assert_int_equal(access(p.endpoint + 6, F_OK), -1); /* wire_close has removed the socket */
    assert_ok(wire_new(&w));
    snprintf(path + n, sizeof path - (size_t)n, "/%0100d", 0);
    char longer[620];
    snprintf(longer, sizeof longer, "ipc://%s", path);
    assert_fails(ST_CONFIG, wire_bind(w, longer, NULL, &s), "shorter");
    snprintf(path + n, sizeof path - (size_t)n, "/absent/s");
    snprintf(longer, sizeof longer, "ipc://%s", path);
    assert_fails(ST_UNAVAILABLE, wire_bind(w, longer, NULL, &s), "absent");
    wire_free(&w);
    place_done(&p);
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
        wire *w = NULL;
        wire_socket *first = NULL, *second = NULL;
        assert_ok(wire_new(&w));
        assert_ok(wire_bind(w, places[i].endpoint, NULL, &first));
        assert_fails(ST_UNAVAILABLE, wire_bind(w, places[i].endpoint, NULL, &second), "in use by");
        assert_non_null(strstr(status_text(), "prepd.endpoint"));
        assert_non_null(strstr(status_text(), i ? places[i].endpoint : places[i].folder));
        wire_close(&first);
        wire_free(&w);
        place_done(&places[i]);
    }
}

static void test_wire_bind__stale_file_is_replaced(void **state)
{
    (void)state;
    place p = place_ipc();
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct stat info;
    wire *w = NULL;
    wire_socket *s = NULL;
    strcpy(a.sun_path, p.endpoint + 6);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    close(fd); /* the socket file stays, as after SIGKILL */
    assert_ok(wire_new(&w));
    assert_ok(wire_bind(w, p.endpoint, NULL, &s));
    wire_close(&s);
    assert_int_equal(stat(a.sun_path, &info), -1);
    wire_free(&w);

    FILE *f = fopen(a.sun_path, "w"); /* a file that is not a socket is left alone */
    assert_non_null(f);
    fclose(f);
    assert_ok(wire_new(&w));
    assert_fails(ST_CANT_CREATE, wire_bind(w, p.endpoint, NULL, &s), "not a socket");
    assert_int_equal(stat(a.sun_path, &info), 0);
    wire_free(&w);
    place_done(&p);
}

static void test_wire__wrong_endpoints_are_refused(void **state)
{
    (void)state;
    wire *w = NULL;
    wire_socket *s = NULL;
    char *beside = NULL;
    char longer[200] = "ipc:///tmp/";
    memset(longer + 11, 'x', 120);
    assert_ok(wire_new(&w));
    assert_fails(ST_CONFIG, wire_bind(w, longer, NULL, &s), "too long");
    assert_fails(ST_CONFIG, wire_bind(w, "tcp://0.0.0.0:5555", NULL, &s), "CURVE keys");
    assert_fails(ST_CONFIG, wire_connect(w, "tcp://192.168.0.1:5555", &s), "the daemon's machine");
    assert_fails(ST_CONFIG, wire_bind(w, "tcp://*:5555", NULL, &s), "CURVE keys");
    assert_fails(ST_CONFIG, wire_bind(w, "tcp://127.0.0.1", NULL, &s), "PORT");
    assert_fails(ST_CONFIG, wire_bind(w, "tcp://127.0.0.1:70000", NULL, &s), "65535");
    assert_fails(ST_CONFIG, wire_bind(w, "udp://127.0.0.1:7", NULL, &s),
                 "ipc://PATH or tcp://HOST:PORT");
    assert_fails(ST_CONFIG, wire_bind(w, "ipc://", NULL, &s), "PATH");
    assert_fails(ST_CANT_CREATE, wire_bind(w, "ipc:///nowhere/at/all", NULL, &s),
                 "/nowhere/at/: no socket can be made");
    wire_free(&w);

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
    wire *w;
    assert_ok(wire_new(&w));
    for (int k = 0; k < 200; k++) {
        wire_socket *s;
        assert_ok(wire_connect(w, "tcp://127.0.0.1:1", &s));
        wire_close(&s);
    }
    wire_free(&w);
}

static void test_wire_send__unroutable_peer(void **state)
{
    (void)state;
    place p = place_ipc();
    wire *w = NULL;
    wire_socket *s = NULL;
    wire_peer nobody = {.id = "\0abcd", .size = 5};
    wire_msg *m = NULL;
    assert_ok(wire_new(&w));
    assert_ok(wire_bind(w, p.endpoint, NULL, &s));
    assert_ok(wire_msg_new(&m));
    assert_ok(wire_msg_add(m, "x", 1));
    assert_fails(ST_UNAVAILABLE, wire_send(s, &nobody, m), "peer 0061626364");
    assert_int_equal(wire_msg_parts(m), 1); /* the message still belongs to the caller */
    wire_msg_free(&m);
    wire_close(&s);
    wire_free(&w);
    place_done(&p);
}

/* A DEALER notices at once that its peer has gone, but first hands out what had arrived. */
static void test_wire_recv__peer_goes(void **state)
{
    (void)state;
    place p = place_ipc();
    wire *server = NULL, *w = NULL;
    wire_socket *bound = NULL, *s = NULL;
    wire_peer from;
    wire_msg *m = NULL;
    assert_ok(wire_new(&server));
    assert_ok(wire_new(&w));
    assert_ok(wire_bind(server, p.endpoint, NULL, &bound));
    assert_ok(wire_connect(w, p.endpoint, &s));
    assert_ok(wire_msg_new(&m));
    assert_fails(ST_TIMEOUT, wire_recv(s, 20, NULL, m), "nothing came");
    assert_ok(wire_send_json(s, NULL, KIND_BYE, 3, "{}", 2));
    assert_ok(wire_recv(bound, WAIT_MS, &from, m));
    assert_ok(wire_send_json(bound, &from, KIND_END, 9, "{\"rows\":9}", 10));
    wire_close(&bound);
    wire_free(&server);
    wire_wait waits[2] = {{.socket = s}, {.fd = -1}};
    assert_ok(wire_poll(waits, 2, WAIT_MS));
    assert_true(waits[0].ready);
    assert_false(waits[1].ready);

    frame head;
    json_value *v = NULL;
    assert_ok(wire_recv(s, WAIT_MS, NULL, m));
    assert_ok(wire_read_json(m, "daemon", &head, &v));
    assert_int_equal(head.kind, KIND_END);
    assert_int_equal(head.row, 9);
    assert_int_equal(json_int(json_find(v, "rows"), 0), 9);
    json_free(&v);
    assert_fails(ST_UNAVAILABLE, wire_recv(s, WAIT_MS, NULL, m), "closed the connection or died");
    assert_fails(ST_UNAVAILABLE, wire_send_json(s, NULL, KIND_BYE, 0, "{}", 2), "closed");
    wire_msg_free(&m);
    wire_close(&s);
    wire_free(&w);
    place_done(&p);
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
    wire_msg *m = NULL;
    json_value *v = NULL;
    assert_ok(wire_msg_new(&m));
    assert_ok(wire_msg_add(m, head, head_size));
    if (body)
        assert_ok(wire_msg_add(m, body, strlen(body)));
    status st = wire_read_json(m, "peer 7", out, &v);
    json_free(&v);
    wire_msg_free(&m);
    return st;
}

static void test_wire_read_json__refuses_hostile_messages(void **state)
{
    (void)state;
    uint8_t head[FRAME_BYTES];
    frame f = {.kind = KIND_HELLO, .row = 5, .block_bytes = 2}, got;
    frame_encode(&f, head); /* without a digest: accepted, because a client need not have XXH3 */
    assert_ok(read_as_json(head, sizeof head, "{}", &got));
    assert_int_equal(got.row, 5);
    assert_fails(ST_PROTOCOL, read_as_json(head, sizeof head, "{ }", &got), "header says 2");
    assert_fails(ST_PROTOCOL, read_as_json(head, sizeof head, "[]", &got), "expected an object");
    assert_fails(ST_PROTOCOL, read_as_json(head, sizeof head, "{x", &got), "hello");
    assert_fails(ST_PROTOCOL, read_as_json(head, sizeof head, NULL, &got), "1 parts");
    f.digest = hash_bytes("{}", 2);
    frame_encode(&f, head);
    assert_ok(read_as_json(head, sizeof head, "{}", &got));
    assert_fails(ST_PROTOCOL, read_as_json(head, sizeof head, "[]", &got), "hash");
    assert_fails(ST_PROTOCOL, read_as_json("GET / HTTP/1.1", 14, "{}", &got), "not a Tessera");
    assert_fails(ST_PROTOCOL, read_as_json("", 0, "{}", &got), "peer 7");
    assert_fails(ST_PROTOCOL, read_as_json(head, 63, "{}", &got), "63 bytes");
    head[4] = 2;
    assert_fails(ST_PROTOCOL, read_as_json(head, sizeof head, "{}", &got), "version 2");
    assert_non_null(strstr(status_text(), "version 1"));
    for (int i = 0; i < FRAME_BYTES * 8; i++) { /* each single bit */
        frame_encode(&f, head);
        head[i / 8] ^= (uint8_t)(1 << i % 8);
        assert_int_equal(read_as_json(head, sizeof head, "{}", &got), ST_PROTOCOL);
    }
}

static void test_wire_error__carries_the_reason(void **state)
{
    (void)state;
    json_value *v = NULL;
    const char *text = "{\"code\":\"ST_CONFIG\",\"message\":\"training.seed: 1 here, 2 there\"}";
    assert_ok(json_parse(text, strlen(text), "test", &v));
    assert_fails(ST_CONFIG, wire_error(v, "prepd"), "training.seed: 1 here, 2 there");
    json_free(&v);
    text = "{\"code\":\"ST_OK\"}";
    assert_ok(json_parse(text, strlen(text), "test", &v));
    assert_fails(ST_PROTOCOL, wire_error(v, "prepd"), "no reason given");
    json_free(&v);
}

/* Reads the folder's file of allowed keys. */
static void read_allowed(const char *keys, char *out, size_t size)
{
    char path[400];
    snprintf(path, sizeof path, "%s/allowed", keys);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    out[fread(out, 1, size - 1, f)] = 0;
    fclose(f);
}

static void append_allowed(const char *keys, const char *text)
{
    char path[400];
    snprintf(path, sizeof path, "%s/allowed", keys);
    FILE *f = fopen(path, "a");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void test_wire_keys__each_has_its_own_line(void **state)
{
    (void)state;
    char *folder = harness_temp(), keys[300], text[1000];
    wire *w = NULL;
    snprintf(keys, sizeof keys, "%s/k", folder);
    assert_fails(ST_NO_INPUT, wire_keys_make(keys, "one"), "without --client");
    assert_ok(wire_keys_make(keys, NULL));
    append_allowed(keys, "# by hand"); /* the line has no newline */
    assert_ok(wire_keys_make(keys, "one"));
    assert_ok(wire_keys_make(keys, "two"));
    read_allowed(keys, text, sizeof text);
    assert_non_null(strstr(text, "\n# by hand\n"));
    assert_non_null(strstr(text, " one\n"));
    assert_null(strstr(text, "\n\n"));
    assert_ok(wire_new(&w));
    assert_ok(wire_serve_keys(w, keys));
    wire_free(&w);
    assert_ok(wire_new(&w));
    snprintf(text, sizeof text, "%s/one", keys);
    assert_fails(ST_NO_INPUT, wire_serve_keys(w, text), "a client's folder");
    assert_ok(wire_use_keys(w, text));
    wire_free(&w);
    assert_fails(ST_CANT_CREATE, wire_keys_make(keys, NULL), "another --out");
    assert_fails(ST_CANT_CREATE, wire_keys_make(keys, "two"), "another --client");
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
    status st = wire_keys_make(keys, NULL);
    disk_of(RLIM_INFINITY);
    assert_int_equal(st, ST_IO);
    assert_ok(wire_keys_make(keys, NULL));
    append_allowed(
        keys, "# a line that takes the room that the next key would have needed, and it is full");
    append_allowed(keys, "\n");
    read_allowed(keys, before, sizeof before);
    disk_of(strlen(before) + 9); /* the new line of the file "allowed" does not fit */
    st = wire_keys_make(keys, "site");
    disk_of(RLIM_INFINITY);
    assert_int_equal(st, ST_IO);
    read_allowed(keys, after, sizeof after);
    assert_string_equal(after, before);
    assert_ok(wire_keys_make(keys, "site"));
    harness_remove(&folder);
}

static int io_threads_here(void)
{
    int n = 0;
    DIR *all = opendir("/proc/self/task");
    assert_non_null(all);
    for (struct dirent *e; (e = readdir(all));) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", e->d_name);
        FILE *f = fopen(path, "re");
        if (!f)
            continue;
        n += fgets(name, sizeof name, f) && strstr(name, "/IO/");
        fclose(f);
    }
    closedir(all);
    return n;
}

static void test_wire_io_threads__are_as_many_as_asked_for(void **state)
{
    (void)state;
    enum { N = 3 };
    const wire_limits last = {.io_threads = 1 << (N - 1)}, none = {.io_threads = 1 << N};
    place p = place_ipc();
    wire *w = NULL;
    wire_socket *s = NULL;
    const int before = io_threads_here();
    assert_ok(wire_new(&w));
    assert_ok(wire_io_threads(w, N));
    assert_fails(ST_CANT_CREATE, wire_bind(w, p.endpoint, &none, &s), p.endpoint);
    assert_ok(wire_bind(w, p.endpoint, &last, &s));
    /* a thread sets its name only when it begins to run */
    for (int ms = 0; io_threads_here() - before != N; ms++) {
        assert_true(ms < WAIT_MS);
        usleep(1000);
    }
    wire_close(&s);
    wire_free(&w);
    place_done(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wire_io_threads__are_as_many_as_asked_for),
        cmocka_unit_test(test_wire__ipc_round_trip),
        cmocka_unit_test(test_wire__ipc_in_a_deep_folder),
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
