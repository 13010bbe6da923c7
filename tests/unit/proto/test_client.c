/* Tests of client.c against a small daemon in a thread, which behaves well or badly: a whole
 * session, credit, refusals, rows out of order, and a daemon that dies or restarts. client.py is
 * run on the same daemon and on a recording. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "proto/client.h"
#include "proto/record.h"
#include "tests/harness.h"
#include "tests/unit/proto/seeded_rows.h"

enum { ROWS = 5, WAIT_MS = 20000, QUIET_MS = 2000 };
static const char WELCOME[] = "{\"version\":1,\"stream\":\"train\",\"rows\":5}";

typedef enum behaviour {
    SERVE,
    REFUSE,
    OTHER_VERSION,
    DIE_AFTER_TWO,
    OUT_OF_ORDER, /* send row 1 after row 2 */
    GARBAGE,
    SILENT,
    GO_AT_HELLO,      /* close the socket and do not come back */
    RESTART_AT_HELLO, /* close the socket at the first HELLO, serve the second */
    STOP_AT_HELLO     /* answer the first HELLO with "it stops", serve the second */
} behaviour;

/* A daemon that serves one consumer, in a thread. */
typedef struct daemon_side {
    char *folder, endpoint[200];
    behaviour how;
    arena a;
    codec *c;
    row rows[ROWS];
    wire_msg *m[ROWS];
    wire *w;
    wire_socket *s;
    wire_peer peer;
    pthread_t thread;
    char hello[2000]; /* the text of HELLO as received */
    int64_t credit, in_flight, most_in_flight;
    int bytes_returned_wrong, said_bye;
} daemon_side;

static void set_up(daemon_side *d, behaviour how, image_filter filter, image_codec image)
{
    memset(d, 0, sizeof *d);
    d->how = how;
    d->folder = harness_temp();
    snprintf(d->endpoint, sizeof d->endpoint, "ipc://%s/s", d->folder);
    arena_init(&d->a, 0);
    assert_ok(codec_new(&d->c));
    for (int i = 0; i < ROWS; i++) {
        row_make(&(row_recipe){.seed = (uint64_t)i + 1,
                               .n_docs = i,
                               .images = 2,
                               .videos = i % 2,
                               .weights = i == 3,
                               .noise = 1},
                 &d->a, &d->rows[i]);
        assert_ok(wire_msg_new(&d->m[i]));
        assert_ok(codec_encode(d->c, &d->rows[i], (uint64_t)i, filter, image, d->m[i]));
    }
    assert_ok(wire_new(&d->w));
    assert_ok(wire_bind(d->w, d->endpoint, NULL, &d->s));
}

static void tear_down(daemon_side *d)
{
    for (int i = 0; i < ROWS; i++)
        wire_msg_free(&d->m[i]);
    wire_close(&d->s);
    wire_free(&d->w);
    codec_free(&d->c);
    arena_done(&d->a);
    harness_remove(&d->folder);
}

/* Receives a control message and returns its kind; *out_bytes is its member "bytes", or 0. */
static int next_message(daemon_side *d, wire_msg *m, int64_t *out_bytes)
{
    frame head;
    json_value *v = NULL;
    assert_ok(wire_recv(d->s, WAIT_MS, &d->peer, m));
    assert_ok(wire_read_json(m, "consumer", &head, &v));
    *out_bytes = json_int(json_find(v, "bytes"), 0);
    if (head.kind == KIND_HELLO) {
        span text = wire_msg_part(m, 1);
        snprintf(d->hello, sizeof d->hello, "%.*s", (int)text.size, (const char *)text.data);
        d->credit = json_int(json_find(v, "credit_bytes"), 0);
    }
    json_free(&v);
    return (int)head.kind;
}

static void send_rows(daemon_side *d, wire_msg *m, int n)
{
    for (int i = 0; i < n; i++) {
        int64_t size = (int64_t)wire_msg_bytes(d->m[i]), bytes;
        while (d->in_flight > 0 && d->in_flight + size > d->credit) {
            assert_int_equal(next_message(d, m, &bytes), KIND_CREDIT);
            d->in_flight -= bytes;
        }
        d->in_flight += size;
        if (d->in_flight > d->most_in_flight)
            d->most_in_flight = d->in_flight;
        wire_msg_clear(m);
        assert_ok(wire_msg_share(m, d->m[i]));
        assert_ok(wire_send(d->s, &d->peer, m));
    }
}

static void *serve(void *user)
{
    daemon_side *d = user;
    wire_msg *m = NULL;
    uint8_t head[FRAME_BYTES];
    int64_t bytes;
    assert_ok(wire_msg_new(&m));
    assert_int_equal(next_message(d, m, &bytes), KIND_HELLO);
    if (d->how == GO_AT_HELLO || d->how == RESTART_AT_HELLO)
        wire_close(&d->s);
    if (d->how == SILENT || d->how == GO_AT_HELLO)
        goto done;
    if (d->how == RESTART_AT_HELLO)
        assert_ok(wire_bind(d->w, d->endpoint, NULL, &d->s));
    if (d->how == STOP_AT_HELLO)
        assert_ok(wire_send_error(d->s, &d->peer, 0, FAIL(ST_STOPPED, "it stops")));
    if (d->how == RESTART_AT_HELLO || d->how == STOP_AT_HELLO)
        assert_int_equal(next_message(d, m, &bytes), KIND_HELLO);
    if (d->how == REFUSE) {
        assert_ok(
            wire_send_error(d->s, &d->peer, 0, FAIL(ST_CONFIG, "training.seed: 1 here, 2 there")));
        goto done;
    }
    if (d->how == OTHER_VERSION) {
        frame_encode(&(frame){.kind = KIND_WELCOME, .block_bytes = 2}, head);
        head[4] = 7;
        wire_msg_clear(m);
        assert_ok(wire_msg_add(m, head, sizeof head));
        assert_ok(wire_msg_add(m, "{}", 2));
        assert_ok(wire_send(d->s, &d->peer, m));
        goto done;
    }
    assert_ok(wire_send_json(d->s, &d->peer, KIND_WELCOME, 0, WELCOME, sizeof WELCOME - 1));
    if (d->how == GARBAGE) {
        wire_msg_clear(m);
        assert_ok(wire_msg_add(m, "GET / HTTP/1.1\r\n", 16));
        assert_ok(wire_send(d->s, &d->peer, m));
        goto done;
    }
    if (d->how == OUT_OF_ORDER) {
        wire_msg *second = d->m[1];
        d->m[1] = d->m[2];
        d->m[2] = second;
    }
    send_rows(d, m, d->how == DIE_AFTER_TWO ? 2 : ROWS);
    if (d->how == DIE_AFTER_TWO) {
        wire_close(&d->s);
        goto done;
    }
    assert_ok(wire_send_json(d->s, &d->peer, KIND_END, ROWS, "{\"rows\":5}", 10));
    while (!d->said_bye) {
        int kind = next_message(d, m, &bytes);
        assert_true(kind == KIND_CREDIT || kind == KIND_BYE);
        d->in_flight -= bytes;
        d->said_bye = kind == KIND_BYE;
    }
done:
    wire_msg_free(&m);
    return NULL;
}

static client_options options_for(const daemon_side *d)
{
    return (client_options){.endpoint = d->endpoint,
                            .stream = "train",
                            .stream_options = "{\"training.seed\":1}",
                            .cursor = "{\"row\":0}",
                            .rank = 1,
                            .ranks = 2,
                            .credit_bytes = 1 << 30,
                            .timeout_ms = WAIT_MS,
                            .patient = d->how == RESTART_AT_HELLO || d->how == STOP_AT_HELLO};
}

static void run_session(behaviour how, int64_t credit)
{
    daemon_side d;
    client *c = NULL;
    arena a;
    set_up(&d, how, IMAGE_FILTER_NONE, IMAGE_CODEC_NONE);
    arena_init(&a, 0);
    assert_int_equal(pthread_create(&d.thread, NULL, serve, &d), 0);
    client_options o = options_for(&d);
    o.credit_bytes = credit;
    assert_ok(client_open(&o, &c));
    assert_string_equal(client_welcome(c), WELCOME);
    for (int i = 0; i < ROWS; i++) {
        row r;
        frame head;
        arena_reset(&a);
        assert_ok(client_next(c, &a, &r, &head, NULL));
        assert_int_equal(head.row, i);
        rows_assert_equal(&d.rows[i], &r);
    }
    row r;
    assert_int_equal(client_next(c, &a, &r, NULL, NULL), ST_END);
    assert_int_equal(client_next(c, &a, &r, NULL, NULL), ST_END);
    client_close(&c);
    pthread_join(d.thread, NULL);
    assert_true(d.said_bye);
    assert_int_equal(d.in_flight, 0); /* credit for every byte came back */
    int64_t largest = 0;
    for (int i = 0; i < ROWS; i++)
        if (largest < (int64_t)wire_msg_bytes(d.m[i]))
            largest = (int64_t)wire_msg_bytes(d.m[i]);
    assert_true(d.most_in_flight <= (credit > largest ? credit : largest));
    const char *words[] = {"\"version\":2",          "\"stream\":\"train\"", "\"training.seed\":1",
                           "\"start_row\":0",        "\"rank\":1",           "\"ranks\":2",
                           "\"cursor\":{\"row\":0}", "\"prefixes\":true"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (!strstr(d.hello, words[i]))
            fail_msg("%s is not in %s", words[i], d.hello);
    arena_done(&a);
    tear_down(&d);
}

static void test_client__whole_session(void **state)
{
    (void)state;
    run_session(SERVE, (int64_t)1 << 30);
}

static void test_client__small_credit(void **state)
{
    (void)state;
    run_session(SERVE, 1);
}

static void test_client__a_daemon_that_is_restarted(void **state)
{
    (void)state;
    run_session(RESTART_AT_HELLO, (int64_t)1 << 30);
    run_session(STOP_AT_HELLO, (int64_t)1 << 30);
}

/* client_open or the first failing client_next must fail like this with a daemon of this
 * behaviour. */
static void assert_session_fails(behaviour how, status code, const char *words, const char *more)
{
    daemon_side d;
    client *c = NULL;
    arena a;
    row r;
    set_up(&d, how, IMAGE_FILTER_NONE, IMAGE_CODEC_NONE);
    arena_init(&a, 0);
    assert_int_equal(pthread_create(&d.thread, NULL, serve, &d), 0);
    client_options o = options_for(&d);
    if (how == SILENT)
        o.timeout_ms = QUIET_MS;
    status st = client_open(&o, &c);
    while (st == ST_OK)
        st = client_next(c, &a, &r, NULL, NULL);
    assert_fails(code, st, words);
    assert_non_null(strstr(status_text(), more));
    assert_non_null(strstr(status_text(), d.folder)); /* the peer is named */
    client_close(&c);
    pthread_join(d.thread, NULL);
    arena_done(&a);
    tear_down(&d);
}

static void test_client__refusals(void **state)
{
    (void)state;
    assert_session_fails(REFUSE, ST_CONFIG, "training.seed: 1 here, 2 there", "refused");
    assert_session_fails(OTHER_VERSION, ST_PROTOCOL, "version 7", "version 1");
    assert_session_fails(GARBAGE, ST_PROTOCOL, "not a Tessera", "16 bytes");
    assert_session_fails(SILENT, ST_TIMEOUT, "building its index", "2.0 s");
    assert_session_fails(GO_AT_HELLO, ST_UNAVAILABLE, "closed the connection", "died");
    assert_session_fails(OUT_OF_ORDER, ST_PROTOCOL, "row 1 came", "where row 3");
    assert_session_fails(DIE_AFTER_TWO, ST_UNAVAILABLE, "closed the connection", "died");
}

static bool is_stopped(void)
{
    return true;
}

static void test_client_open__stopped(void **state)
{
    (void)state;
    client *c = NULL;
    const client_options o = {.endpoint = "ipc:///tmp/tessera-nobody-listens-here",
                              .stream = "train",
                              .ranks = 1,
                              .credit_bytes = 1,
                              .timeout_ms = WAIT_MS,
                              .patient = true,
                              .stopped = is_stopped};
    assert_int_equal(client_open(&o, &c), ST_STOPPED);
    assert_null(c);
}

static void test_client_open__no_daemon(void **state)
{
    (void)state;
    client *c = NULL;
    client_options o = {.endpoint = "ipc:///tmp/tessera-nobody-listens-here",
                        .stream = "train",
                        .ranks = 1,
                        .credit_bytes = 1,
                        .timeout_ms = QUIET_MS};
    int64_t start = clock_ns();
    assert_fails(ST_UNAVAILABLE, client_open(&o, &c), "prepd serve is not running");
    assert_true(clock_ns() - start < (int64_t)5 * 1000000000);
    assert_null(c);
    o.endpoint = "ipc://";
    assert_fails(ST_CONFIG, client_open(&o, &c), "PATH");
}

/* A daemon disconnects a peer that sends a HELLO of this size and cannot say why, so the client
 * refuses to send it. */
static void test_client_open__a_cursor_too_long_for_any_daemon(void **state)
{
    (void)state;
    enum { BYTES = 9 << 20 };
    client *c = NULL;
    char *cursor = malloc(BYTES + 1);
    assert_non_null(cursor);
    memset(cursor, ' ', BYTES);
    memcpy(cursor, "{}", 2);
    cursor[BYTES] = 0;
    const client_options o = {.endpoint = "ipc:///tmp/tessera-nobody-listens-here",
                              .stream = "train",
                              .cursor = cursor,
                              .ranks = 1,
                              .credit_bytes = 1,
                              .timeout_ms = QUIET_MS};
    assert_fails(ST_BAD_INPUT, client_open(&o, &c), "accepts 8388608");
    assert_null(c);
    free(cursor);
}

static const char PYTHON[] = "/usr/bin/python3";

static void need_python(void)
{
    char line[200];
    if (!getenv("TESSERA_SOURCE"))
        HARNESS_SKIP("TESSERA_SOURCE is not set");
    snprintf(line, sizeof line, "%s -c 'import zmq, zstandard, numpy' 2>/dev/null", PYTHON);
    if (system(line) != 0)
        HARNESS_SKIP("python3-zmq, python3-zstandard and python3-numpy are not installed");
}

/* Runs client.py on the daemon and on a recording, and compares the rows it yields with files of
 * the rows. */
static void python_client(image_filter filter, image_codec image)
{
    daemon_side d;
    record_writer *w = NULL;
    char command[4000], files[2000] = "", path[300];
    const char *source = getenv("TESSERA_SOURCE");
    set_up(&d, SERVE, filter, image);
    snprintf(path, sizeof path, "%s/stream.rec", d.folder);
    assert_ok(record_create(path, WELCOME, &w));
    for (int i = 0; i < ROWS; i++) {
        char file[300];
        snprintf(file, sizeof file, " %s/%d.safetensors", d.folder, i);
        assert_ok(row_save(&d.rows[i], file + 1));
        strcat(files, file);
        assert_ok(record_add(w, d.m[i]));
    }
    assert_ok(record_finish(&w));
    for (int live = 0; live < 2; live++) {
        if (live)
            assert_int_equal(pthread_create(&d.thread, NULL, serve, &d), 0);
        snprintf(command, sizeof command,
                 "ASAN_OPTIONS= %s %s/tests/unit/proto/check_client_py.py %s/proto/client.py %s%s",
                 PYTHON, source, source, live ? d.endpoint : path, files);
        assert_int_equal(system(command), 0);
    }
    pthread_join(d.thread, NULL);
    assert_int_equal(d.in_flight, 0);
    tear_down(&d);
}

static void test_client_py__yields_the_same_rows(void **state)
{
    (void)state;
    need_python();
    python_client(IMAGE_FILTER_NONE, IMAGE_CODEC_NONE);
    python_client(IMAGE_FILTER_PLANE, IMAGE_CODEC_ZSTD);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_client__whole_session),
        cmocka_unit_test(test_client__small_credit),
        cmocka_unit_test(test_client__a_daemon_that_is_restarted),
        cmocka_unit_test(test_client__refusals),
        cmocka_unit_test(test_client_open__no_daemon),
        cmocka_unit_test(test_client_open__stopped),
        cmocka_unit_test(test_client_open__a_cursor_too_long_for_any_daemon),
        cmocka_unit_test(test_client_py__yields_the_same_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
