/* SPDX-License-Identifier: Apache-2.0 */
/* test_http.c: who may listen where, the thread that answers, and Prometheus's text format. */
#include "tests/harness.h"

#include <arpa/inet.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/http/exposition.h"
#include "common/http/http.h"

/* Counts its calls and answers with the path. */
static int answer(void *user, const char *path, FILE *out, const char **out_type)
{
    (void)out_type;
    atomic_fetch_add((atomic_int *)user, 1);
    fprintf(out, "path %s\n", path);
    return strcmp(path, "/gone") == 0 ? 404 : 200;
}

static void address_of(char out[64], const char *host, int port)
{
    snprintf(out, 64, "%s:%d", host, port);
}

/* The whole answer of the door at this port to one request. */
static void ask(int port, const char *request, char out[2048])
{
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    size_t size = 0;
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
    assert_int_equal(write(fd, request, strlen(request)), strlen(request));
    for (ssize_t got; (got = read(fd, out + size, 2047 - size)) > 0;)
        size += (size_t)got;
    out[size] = 0;
    close(fd);
}

static void test_address__beyond_this_machine_only_if_asked(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",          ":9464",      "localhost",       "localhost:0", "name:9464",
        "[::1:9464", "1.2.3:9464", "localhost:9464x", "[]:1",        "localhost:65536"};
    static const char *const wide[] = {"0.0.0.0:9464", "192.0.2.1:9464", "[::]:9464",
                                       "[2001:db8::1]:9464"};
    http *server = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const http_place at = {.option = "x.listen", .address = bad[i], .any_address = true};
        assert_fails(ST_CONFIG, http_open(&at, answer, NULL, &server), "expected HOST:PORT");
        assert_null(http_audience(bad[i]));
    }
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
        const http_place at = {.option = "x.listen", .address = wide[i]};
        assert_fails(ST_CONFIG, http_open(&at, answer, NULL, &server), "metrics.any_address");
        assert_non_null(strstr(http_audience(wide[i]), "no password"));
    }
    assert_null(http_audience("127.0.0.1:9464"));
    assert_null(http_audience("127.9.0.1:9464"));
    assert_null(http_audience("localhost:9464"));
    assert_null(http_audience("[::1]:9464"));
    assert_null(server);
}

static void test_thread__answers_until_it_is_stopped(void **state)
{
    (void)state;
    char address[64], said[2048];
    atomic_int calls = 0;
    const int port = harness_port(NULL);
    http_thread *thread = NULL, *other = NULL;
    address_of(address, "0.0.0.0", port);
    const http_place at = {.option = "x.listen", .address = address, .any_address = true};
    assert_ok(http_thread_start(&at, answer, &calls, &thread));
    ask(port, "GET /one HTTP/1.1\r\nHost: x\r\n\r\n", said);
    assert_non_null(strstr(said, "HTTP/1.1 200"));
    assert_non_null(strstr(said, "path /one\n"));
    ask(port, "GET /gone HTTP/1.1\r\nHost: x\r\n\r\n", said);
    assert_non_null(strstr(said, "HTTP/1.1 404"));
    ask(port, "POST /one HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab", said);
    assert_non_null(strstr(said, "HTTP/1.1 405"));
    assert_int_equal(atomic_load(&calls), 2);
    assert_fails(ST_UNAVAILABLE, http_thread_start(&at, answer, &calls, &other), "x.listen");
    assert_null(other);
    http_thread_stop(&thread);
    assert_null(thread);
    assert_ok(http_thread_start(&at, answer, &calls, &thread)); /* the port is free again */
    http_thread_stop(&thread);
}

static volatile sig_atomic_t caught_by_main;
static pthread_t main_thread;

static void note_thread(int number)
{
    (void)number;
    caught_by_main = pthread_equal(pthread_self(), main_thread) ? 1 : -1;
}

/* A signal to the process must reach a thread that handles it, not the one that answers. */
static void test_thread__receives_no_signals(void **state)
{
    (void)state;
    char address[64];
    atomic_int calls = 0;
    http_thread *thread = NULL;
    sigset_t one, was, pending;
    address_of(address, "localhost", harness_port(NULL));
    const http_place at = {.option = "x.listen", .address = address};
    main_thread = pthread_self();
    signal(SIGUSR1, note_thread);
    assert_ok(http_thread_start(&at, answer, &calls, &thread));
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &one, &was);
    assert_int_equal(kill(getpid(), SIGUSR1), 0);
    usleep(20000); /* time in which another thread could take it */
    sigpending(&pending);
    assert_true(sigismember(&pending, SIGUSR1));
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    assert_int_equal(caught_by_main, 1);
    http_thread_stop(&thread);
}

static void test_exposition__any_text_is_one_value(void **state)
{
    (void)state;
    char text[1024] = "";
    FILE *out = fmemopen(text, sizeof text, "w");
    const exposition_label labels[] = {{"a", "back\\slash \"quoted\""}, {"b", "two\nlines\xff"}};
    exposition_family(out, "x", "gauge", "help");
    exposition_sample(out, "x", labels, 2, 0.5);
    exposition_sample(out, "y", NULL, 0, -NAN);
    exposition_sample(out, "y", NULL, 0, -INFINITY);
    exposition_labelled(out, "z", "l", "v", 9007199254740993.0);
    fclose(out);
    assert_string_equal(text, "# HELP x help\n# TYPE x gauge\n"
                              "x{a=\"back\\\\slash \\\"quoted\\\"\",b=\"two\\\\x0alines\\\\xff\"} "
                              "0.5\n"
                              "y NaN\ny -Inf\nz{l=\"v\"} 9007199254740992\n");
}

/* The value of a figure of this process; NAN if it is not told. */
static double process_figure(const char *name)
{
    char *text = NULL, line[128];
    size_t size;
    double value = NAN;
    FILE *out = open_memstream(&text, &size);
    exposition_process(out);
    fclose(out);
    snprintf(line, sizeof line, "\n%s ", name);
    const char *at = strstr(text, line);
    if (at)
        value = strtod(at + strlen(line), NULL);
    free(text);
    return value;
}

static void test_exposition__tells_of_this_process(void **state)
{
    (void)state;
    const double before = process_figure("process_cpu_seconds_total");
    const clock_t until = clock() + CLOCKS_PER_SEC / 20;
    while (clock() < until) {
    }
    assert_true(process_figure("process_cpu_seconds_total") > before + 0.03);
    const double age = (double)time(NULL) - process_figure("process_start_time_seconds");
    assert_true(age > -3 && age < 600);
    const double fds = process_figure("process_open_fds");
    const int fd = dup(STDOUT_FILENO);
    assert_true(process_figure("process_open_fds") == fds + 1);
    close(fd);
    assert_true(process_figure("process_resident_memory_bytes") > 1e5);
    assert_true(process_figure("process_virtual_memory_bytes") >
                process_figure("process_resident_memory_bytes"));
    assert_true(process_figure("process_max_fds") >= fds);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_address__beyond_this_machine_only_if_asked),
        cmocka_unit_test(test_thread__answers_until_it_is_stopped),
        cmocka_unit_test(test_thread__receives_no_signals),
        cmocka_unit_test(test_exposition__any_text_is_one_value),
        cmocka_unit_test(test_exposition__tells_of_this_process),
    };
    return cmocka_run_group_tests_name("http", tests, NULL, NULL);
}
