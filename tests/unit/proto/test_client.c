/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of client.c against a small daemon in a thread, which behaves well or badly: a whole
 * session, credit, refusals, rows out of order, and a daemon that dies or restarts. client.py is
 * run on the same daemon and on a recording. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "proto/session/client.h"
#include "proto/message/record.h"
#include "tests/harness.h"
#include "tests/unit/proto/seeded_rows.h"

enum { ROWS = 5, WAIT_MS = 20000, QUIET_MS = 2000 };
static const char WELCOME[] = "{\"version\":1,\"stream\":\"train\",\"rows\":5,\"quarantined\":2}";

typedef enum behaviour {
    SERVE,
    REFUSE,
    OLDER, /* refuse HELLO's version as a daemon of version 1 does */
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
    arena memory;
    codec *coder;
    row rows[ROWS];
    wire_msg *message[ROWS];
    wire *net;
    wire_socket *socket;
    wire_peer peer;
    pthread_t thread;
    char hello[2000]; /* the text of HELLO as received */
    int64_t credit, in_flight, most_in_flight;
    int bytes_returned_wrong, said_bye;
} daemon_side;

static void set_up(daemon_side *side, behaviour how, image_filter filter, image_codec image)
{
    memset(side, 0, sizeof *side);
    side->how = how;
    side->folder = harness_temp();
    snprintf(side->endpoint, sizeof side->endpoint, "ipc://%s/s", side->folder);
    arena_init(&side->memory, 0);
    assert_ok(codec_new(&side->coder));
    for (int i = 0; i < ROWS; i++) {
        row_make(&(row_recipe){.seed = (uint64_t)i + 1,
                               .n_docs = i,
                               .images = 2,
                               .videos = i % 2,
                               .weights = i == 3,
                               .noise = 1},
                 &side->memory, &side->rows[i]);
        assert_ok(wire_msg_new(&side->message[i]));
        assert_ok(codec_encode(side->coder, &side->rows[i], (uint64_t)i, filter, image,
                               side->message[i]));
    }
    assert_ok(wire_new(&side->net));
    assert_ok(wire_bind(side->net, side->endpoint, NULL, &side->socket));
}

static void tear_down(daemon_side *side)
{
    for (int i = 0; i < ROWS; i++)
        wire_msg_free(&side->message[i]);
    wire_close(&side->socket);
    wire_free(&side->net);
    codec_free(&side->coder);
    arena_done(&side->memory);
    harness_remove(&side->folder);
}

/* Receives a control message and returns its kind; *out_bytes is its member "bytes", or 0. */
static int next_message(daemon_side *side, wire_msg *message, int64_t *out_bytes)
{
    frame head;
    json_value *value = NULL;
    assert_ok(wire_recv(side->socket, WAIT_MS, &side->peer, message));
    assert_ok(wire_read_json(message, "consumer", &head, &value));
    *out_bytes = json_int(json_find(value, "bytes"), 0);
    if (head.kind == KIND_HELLO) {
        span text = wire_msg_part(message, 1);
        snprintf(side->hello, sizeof side->hello, "%.*s", (int)text.size, (const char *)text.data);
        side->credit = json_int(json_find(value, "credit_bytes"), 0);
    }
    json_free(&value);
    return (int)head.kind;
}

static void send_rows(daemon_side *side, wire_msg *message, int count)
{
    for (int i = 0; i < count; i++) {
        int64_t size = (int64_t)wire_msg_bytes(side->message[i]), bytes;
        while (side->in_flight > 0 && side->in_flight + size > side->credit) {
            assert_int_equal(next_message(side, message, &bytes), KIND_CREDIT);
            side->in_flight -= bytes;
        }
        side->in_flight += size;
        if (side->in_flight > side->most_in_flight)
            side->most_in_flight = side->in_flight;
        wire_msg_clear(message);
        assert_ok(wire_msg_share(message, side->message[i]));
        assert_ok(wire_send(side->socket, &side->peer, message));
    }
}

static void *serve(void *user)
{
    daemon_side *side = user;
    wire_msg *message = NULL;
    uint8_t head[FRAME_BYTES];
    int64_t bytes;
    assert_ok(wire_msg_new(&message));
    assert_int_equal(next_message(side, message, &bytes), KIND_HELLO);
    if (side->how == GO_AT_HELLO || side->how == RESTART_AT_HELLO)
        wire_close(&side->socket);
    if (side->how == SILENT || side->how == GO_AT_HELLO)
        goto done;
    if (side->how == RESTART_AT_HELLO)
        assert_ok(wire_bind(side->net, side->endpoint, NULL, &side->socket));
    if (side->how == STOP_AT_HELLO)
        assert_ok(wire_send_error(side->socket, &side->peer, 0, FAIL(ST_STOPPED, "it stops")));
    if (side->how == RESTART_AT_HELLO || side->how == STOP_AT_HELLO)
        assert_int_equal(next_message(side, message, &bytes), KIND_HELLO);
    if (side->how == REFUSE) {
        assert_ok(wire_send_error(side->socket, &side->peer, 0,
                                  FAIL(ST_CONFIG, "training.seed: 1 here, 2 there")));
        goto done;
    }
    if (side->how == OLDER) {
        assert_ok(wire_send_error(
            side->socket, &side->peer, 0,
            FAIL(ST_PROTOCOL, "consumer of protocol version 3, this daemon has 1")));
        goto done;
    }
    if (side->how == OTHER_VERSION) {
        frame_encode(&(frame){.kind = KIND_WELCOME, .block_bytes = 2}, head);
        head[4] = 7;
        wire_msg_clear(message);
        assert_ok(wire_msg_add(message, head, sizeof head));
        assert_ok(wire_msg_add(message, "{}", 2));
        assert_ok(wire_send(side->socket, &side->peer, message));
        goto done;
    }
    assert_ok(
        wire_send_json(side->socket, &side->peer, KIND_WELCOME, 0, WELCOME, sizeof WELCOME - 1));
    if (side->how == GARBAGE) {
        wire_msg_clear(message);
        assert_ok(wire_msg_add(message, "GET / HTTP/1.1\r\n", 16));
        assert_ok(wire_send(side->socket, &side->peer, message));
        goto done;
    }
    if (side->how == OUT_OF_ORDER) {
        wire_msg *second = side->message[1];
        side->message[1] = side->message[2];
        side->message[2] = second;
    }
    send_rows(side, message, side->how == DIE_AFTER_TWO ? 2 : ROWS);
    if (side->how == DIE_AFTER_TWO) {
        wire_close(&side->socket);
        goto done;
    }
    assert_ok(wire_send_json(side->socket, &side->peer, KIND_END, ROWS, "{\"rows\":5}", 10));
    while (!side->said_bye) {
        int kind = next_message(side, message, &bytes);
        assert_true(kind == KIND_CREDIT || kind == KIND_BYE);
        side->in_flight -= bytes;
        side->said_bye = kind == KIND_BYE;
    }
done:
    wire_msg_free(&message);
    return NULL;
}

static client_options options_for(const daemon_side *side)
{
    return (client_options){.endpoint = side->endpoint,
                            .stream = "train",
                            .stream_options = "{\"training.seed\":1}",
                            .cursor = "{\"row\":0}",
                            .rank = 1,
                            .ranks = 2,
                            .credit_bytes = 1 << 30,
                            .timeout_ms = WAIT_MS,
                            .patient = side->how == RESTART_AT_HELLO || side->how == STOP_AT_HELLO};
}

static void run_session(behaviour how, int64_t credit)
{
    daemon_side side;
    client *consumer = NULL;
    arena memory;
    set_up(&side, how, IMAGE_FILTER_NONE, IMAGE_CODEC_NONE);
    arena_init(&memory, 0);
    assert_int_equal(pthread_create(&side.thread, NULL, serve, &side), 0);
    client_options options = options_for(&side);
    options.credit_bytes = credit;
    options.cursor = "{\"row\":0,\"quarantine\":[{\"id\":7,\"cause\":\"b\"}]}";
    options.quarantine = "[{\"id\":4,\"cause\":\"a\"},{\"id\":7,\"cause\":\"c\",\"row\":2}]";
    assert_ok(client_open(&options, &consumer));
    assert_string_equal(client_welcome(consumer), WELCOME);
    for (int i = 0; i < ROWS; i++) {
        row packed;
        frame head;
        arena_reset(&memory);
        assert_ok(client_next(consumer, &memory, &packed, &head, NULL));
        assert_int_equal(head.row, i);
        rows_assert_equal(&side.rows[i], &packed);
    }
    row packed;
    assert_int_equal(client_next(consumer, &memory, &packed, NULL, NULL), ST_END);
    assert_int_equal(client_next(consumer, &memory, &packed, NULL, NULL), ST_END);
    client_close(&consumer);
    pthread_join(side.thread, NULL);
    assert_true(side.said_bye);
    assert_int_equal(side.in_flight, 0); /* credit for every byte came back */
    int64_t largest = 0;
    for (int i = 0; i < ROWS; i++)
        if (largest < (int64_t)wire_msg_bytes(side.message[i]))
            largest = (int64_t)wire_msg_bytes(side.message[i]);
    assert_true(side.most_in_flight <= (credit > largest ? credit : largest));
    /* The list of an earlier cursor and the other one are one. */
    static const char union_list[] = "\"quarantine\":{\"count\":2,\"ids\":\"ED\"}";
    const char *words[] = {
        "\"version\":3", "\"stream\":\"train\"", "\"training.seed\":1", "\"start_row\":0",
        "\"rank\":1",    "\"ranks\":2",          "\"prefixes\":true",   "\"cursor\":{\"row\":0}",
        union_list};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (!strstr(side.hello, words[i]))
            fail_msg("%s is not in %s", words[i], side.hello);
    arena_done(&memory);
    tear_down(&side);
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
    daemon_side side;
    client *consumer = NULL;
    arena memory;
    row packed;
    set_up(&side, how, IMAGE_FILTER_NONE, IMAGE_CODEC_NONE);
    arena_init(&memory, 0);
    assert_int_equal(pthread_create(&side.thread, NULL, serve, &side), 0);
    client_options options = options_for(&side);
    if (how == SILENT)
        options.timeout_ms = QUIET_MS;
    status st = client_open(&options, &consumer);
    while (st == ST_OK)
        st = client_next(consumer, &memory, &packed, NULL, NULL);
    assert_fails(code, st, words);
    assert_non_null(strstr(status_text(), more));
    assert_non_null(strstr(status_text(), side.folder)); /* the peer is named */
    client_close(&consumer);
    pthread_join(side.thread, NULL);
    arena_done(&memory);
    tear_down(&side);
}

static void test_client__refusals(void **state)
{
    (void)state;
    assert_session_fails(REFUSE, ST_CONFIG, "training.seed: 1 here, 2 there", "refused");
    assert_session_fails(OLDER, ST_PROTOCOL, "this daemon has 1",
                         "needs a daemon with protocol version 3");
    assert_session_fails(OTHER_VERSION, ST_PROTOCOL, "version 7", "version 1");
    assert_session_fails(GARBAGE, ST_PROTOCOL, "not a Tessera", "16 bytes");
    assert_session_fails(SILENT, ST_TIMEOUT, "building its index", "2.0 s");
    assert_session_fails(GO_AT_HELLO, ST_UNAVAILABLE, "closed the connection", "died");
    assert_session_fails(OUT_OF_ORDER, ST_PROTOCOL, "row 1 came", "where row 3");
    assert_session_fails(DIE_AFTER_TWO, ST_UNAVAILABLE, "closed the connection", "died");
}

/* A HELLO that no daemon accepts is not sent. */
static void test_client__names_what_makes_hello_too_long(void **state)
{
    (void)state;
    enum { LONG = HELLO_BYTES + 1 };
    daemon_side side;
    client *consumer = NULL;
    char *text = malloc(LONG + 3);
    assert_non_null(text);
    memset(text, 'x', LONG + 2);
    text[0] = text[LONG] = '"';
    text[LONG + 1] = 0;
    set_up(&side, SILENT, IMAGE_FILTER_NONE, IMAGE_CODEC_NONE);
    client_options options = options_for(&side);
    options.quarantine = "[{\"id\":4,\"cause\":\"a\"}]";
    options.stream_options = text;
    assert_fails(ST_BAD_INPUT, client_open(&options, &consumer), "for 1 bad samples");
    assert_non_null(strstr(status_text(), "shorten the options of the stream"));
    tear_down(&side);
    free(text);
}

/* Sends row `first` and those after it with their tags; that of row `wrong` says something else. */
static void send_tagged(daemon_side *side, int first, int wrong)
{
    static char tag[ROW_TAG_BYTES];
    for (int i = first; i < ROWS; i++) {
        wire_msg *message = NULL;
        assert_ok(wire_msg_new(&message));
        assert_ok(wire_msg_share(message, side->message[i]));
        row_write_tag(&side->rows[i], (uint64_t)i, i == wrong ? 0 : -1, false, tag);
        if (i == 1)
            strcpy(strstr(tag, "\"[]\"}"), "\"[{\\\"id\\\":9,\\\"cause\\\":\\\"c\\\"}]\"}");
        assert_ok(wire_msg_add(message, tag, strlen(tag)));
        assert_ok(wire_send(side->socket, &side->peer, message));
        wire_msg_free(&message);
    }
}

enum { FALSE_ROW = 2 };

/* A daemon one of whose workers makes another row than was ordered. */
static void *serve_false_row(void *user)
{
    static const char welcome[] = "{\"version\":3,\"stream\":\"train\",\"rows\":5,\"index\":"
                                  "\"0123456789abcdef0123456789abcdef\"}",
                      list[] = "\"quarantine\":{\"index\":\"0123456789abcdef0123456789abcdef\","
                               "\"count\":1,\"ids\":\"J\"}";
    daemon_side *side = user;
    wire_msg *message = NULL;
    int64_t bytes;
    int kind;
    assert_ok(wire_msg_new(&message));
    for (int session = 0; session < 2; session++) {
        while ((kind = next_message(side, message, &bytes)) != KIND_HELLO)
            assert_true(kind == KIND_CREDIT); /* of the session before */
        assert_true(strstr(side->hello, session ? "\"cursor\":{\"row\":2}" : "\"row\":0") != NULL);
        assert_true(!strstr(side->hello, list) == !session); /* what row 1 has listed */
        assert_ok(wire_send_json(side->socket, &side->peer, KIND_WELCOME, 0, welcome,
                                 sizeof welcome - 1));
        send_tagged(side, session ? FALSE_ROW : 0, session ? -1 : FALSE_ROW);
        while (session == 0 && (kind = next_message(side, message, &bytes)) != KIND_REFUSE)
            assert_int_equal(kind, KIND_CREDIT);
        if (session == 0)
            assert_ok(wire_send_error(side->socket, &side->peer, 0, FAIL(ST_STOPPED, "again")));
    }
    assert_ok(wire_send_json(side->socket, &side->peer, KIND_END, ROWS, "{\"rows\":3}", 10));
    while (next_message(side, message, &bytes) != KIND_BYE)
        ;
    wire_msg_free(&message);
    return NULL;
}

/* The caller notices nothing: the row comes once, as it should be. */
static void test_client__asks_again_for_a_row_that_is_not_what_was_ordered(void **state)
{
    (void)state;
    daemon_side side;
    client *consumer = NULL;
    arena memory;
    row packed;
    set_up(&side, SERVE, IMAGE_FILTER_NONE, IMAGE_CODEC_NONE);
    arena_init(&memory, 0);
    assert_int_equal(pthread_create(&side.thread, NULL, serve_false_row, &side), 0);
    client_options options = options_for(&side);
    options.rank = 0;
    options.ranks = 1;
    assert_ok(client_open(&options, &consumer));
    for (int i = 0; i < ROWS; i++) {
        char cursor[32];
        frame head;
        arena_reset(&memory);
        assert_ok(client_next(consumer, &memory, &packed, &head, NULL));
        assert_int_equal(head.row, i);
        snprintf(cursor, sizeof cursor, "{\"row\":%d}", i + 1);
        assert_string_equal(packed.cursor, cursor);
        packed.cursor = side.rows[i].cursor; /* the block's own texts do not count */
        packed.quarantine = side.rows[i].quarantine;
        rows_assert_equal(&side.rows[i], &packed);
    }
    assert_int_equal(client_next(consumer, &memory, &packed, NULL, NULL), ST_END);
    client_close(&consumer);
    pthread_join(side.thread, NULL);
    arena_done(&memory);
    tear_down(&side);
}

/* A daemon that is told of a false row, ends the session and does not answer again. */
static void *serve_false_row_and_go(void *user)
{
    static const char welcome[] = "{\"version\":3,\"stream\":\"train\",\"rows\":5}";
    daemon_side *side = user;
    wire_msg *message = NULL;
    int64_t bytes;
    assert_ok(wire_msg_new(&message));
    assert_int_equal(next_message(side, message, &bytes), KIND_HELLO);
    assert_ok(
        wire_send_json(side->socket, &side->peer, KIND_WELCOME, 0, welcome, sizeof welcome - 1));
    send_tagged(side, 0, FALSE_ROW);
    while (next_message(side, message, &bytes) != KIND_REFUSE)
        ;
    assert_ok(wire_send_error(side->socket, &side->peer, 0, FAIL(ST_STOPPED, "again")));
    wire_msg_free(&message);
    return NULL;
}

/* The caller, who knows how long it wants to wait for a daemon, is told that this one is gone. */
static void test_client__a_daemon_that_goes_after_a_refusal(void **state)
{
    enum { PATIENCE_MS = 2000 };
    (void)state;
    daemon_side side;
    client *consumer = NULL;
    arena memory;
    row packed;
    set_up(&side, SERVE, IMAGE_FILTER_NONE, IMAGE_CODEC_NONE);
    arena_init(&memory, 0);
    assert_int_equal(pthread_create(&side.thread, NULL, serve_false_row_and_go, &side), 0);
    client_options options = options_for(&side);
    options.rank = 0;
    options.ranks = 1;
    options.timeout_ms = PATIENCE_MS;
    assert_ok(client_open(&options, &consumer));
    for (int i = 0; i < FALSE_ROW; i++)
        assert_ok(client_next(consumer, &memory, &packed, NULL, NULL));
    assert_int_equal(client_next(consumer, &memory, &packed, NULL, NULL), ST_UNAVAILABLE);
    client_close(&consumer);
    pthread_join(side.thread, NULL);
    arena_done(&memory);
    tear_down(&side);
}

static bool is_stopped(void)
{
    return true;
}

static void test_client_open__stopped(void **state)
{
    (void)state;
    client *consumer = NULL;
    const client_options options = {.endpoint = "ipc:///tmp/tessera-nobody-listens-here",
                                    .stream = "train",
                                    .ranks = 1,
                                    .credit_bytes = 1,
                                    .timeout_ms = WAIT_MS,
                                    .patient = true,
                                    .stopped = is_stopped};
    assert_int_equal(client_open(&options, &consumer), ST_STOPPED);
    assert_null(consumer);
}

static void test_client_open__no_daemon(void **state)
{
    (void)state;
    client *consumer = NULL;
    client_options options = {.endpoint = "ipc:///tmp/tessera-nobody-listens-here",
                              .stream = "train",
                              .ranks = 1,
                              .credit_bytes = 1,
                              .timeout_ms = QUIET_MS};
    int64_t start = clock_ns();
    assert_fails(ST_UNAVAILABLE, client_open(&options, &consumer), "prepd serve is not running");
    assert_true(clock_ns() - start < (int64_t)5 * 1000000000);
    assert_null(consumer);
    options.endpoint = "ipc://";
    assert_fails(ST_CONFIG, client_open(&options, &consumer), "PATH");
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
    daemon_side side;
    record_writer *recording = NULL;
    char command[4000], files[2000] = "", path[300];
    const char *source = getenv("TESSERA_SOURCE");
    set_up(&side, SERVE, filter, image);
    snprintf(path, sizeof path, "%s/stream.rec", side.folder);
    assert_ok(record_create(path, WELCOME, &recording));
    for (int i = 0; i < ROWS; i++) {
        char file[300];
        snprintf(file, sizeof file, " %s/%d.safetensors", side.folder, i);
        assert_ok(row_save(&side.rows[i], file + 1));
        strcat(files, file);
        assert_ok(record_add(recording, side.message[i]));
    }
    assert_ok(record_finish(&recording));
    for (int live = 0; live < 2; live++) {
        if (live)
            assert_int_equal(pthread_create(&side.thread, NULL, serve, &side), 0);
        snprintf(command, sizeof command,
                 "ASAN_OPTIONS= %s %s/tests/unit/proto/check_client_py.py %s/proto/python %s%s",
                 PYTHON, source, source, live ? side.endpoint : path, files);
        assert_int_equal(system(command), 0);
    }
    pthread_join(side.thread, NULL);
    assert_int_equal(side.in_flight, 0);
    tear_down(&side);
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
        cmocka_unit_test(test_client__names_what_makes_hello_too_long),
        cmocka_unit_test(test_client__asks_again_for_a_row_that_is_not_what_was_ordered),
        cmocka_unit_test(test_client__a_daemon_that_goes_after_a_refusal),
        cmocka_unit_test(test_client_open__no_daemon),
        cmocka_unit_test(test_client_open__stopped),
        cmocka_unit_test(test_client_py__yields_the_same_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
