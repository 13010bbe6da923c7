/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of what a service manager learns: the codes and reasons of /healthz and /readyz, and the
 * signs of life that its watchdog gets. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "prepd/serve/shell.h"
#include "tests/harness.h"

static const int64_t SECOND = 1000000000;

/* A daemon with one worker at work. The tests say when its last answer came. */
typedef struct fixture {
    dispatch state;
    shell around;
    conf options;
    worker_seat seat;
    lease work;
} fixture;

static int setup_metrics(void **state)
{
    fixture *setup = calloc(1, sizeof *setup);
    assert_non_null(setup);
    setup->options.prepd_sample_timeout = 5; /* the watchdog waits 4 x 5 + 30 s */
    setup->state.options = &setup->options;
    setup->around.core = &setup->state;
    setup->state.place.build = "b";
    setup->state.seats = &setup->seat;
    setup->state.train.ready = true;
    setup->seat.work = &setup->work;
    *state = setup;
    return 0;
}

static int teardown_metrics(void **state)
{
    free(*state);
    return 0;
}

/* The answer must have this code, and its body these words. */
static void assert_answer(dispatch *state, const char *path, int code, const char *words)
{
    char body[2048] = "";
    const char *type = "";
    FILE *out = fmemopen(body, sizeof body, "w");
    assert_non_null(out);
    assert_int_equal(metrics_answer(state, path, out, &type), code);
    fclose(out);
    assert_string_equal(type, strcmp(path, "/") == 0 ? "text/html; charset=utf-8" : "");
    assert_non_null(strstr(body, words));
}

static void test_unhealthy__only_after_the_time_work_may_take(void **state)
{
    fixture *setup = *state;
    setup->state.answered_ns = 7 * SECOND;
    assert_null(metrics_unhealthy(&setup->state, 7 * SECOND + 50 * SECOND));
    assert_non_null(strstr(metrics_unhealthy(&setup->state, 7 * SECOND + 50 * SECOND + SECOND / 10),
                           "none has made progress"));
    setup->options.prepd_sample_timeout = 6;
    assert_null(metrics_unhealthy(&setup->state, 7 * SECOND + 50 * SECOND + SECOND / 10));
}

static void test_unhealthy__not_without_work(void **state)
{
    fixture *setup = *state;
    setup->seat.work = NULL;
    assert_null(metrics_unhealthy(&setup->state, 1000 * SECOND));
    worker_seat last = {.work = &setup->work};
    setup->seat.next = &last; /* one worker at work among several is enough */
    assert_non_null(metrics_unhealthy(&setup->state, 1000 * SECOND));
    setup->state.seats = NULL;
    assert_null(metrics_unhealthy(&setup->state, 1000 * SECOND));
}

/* The value of a line of /metrics that begins with these words; -1 if there is none. */
static double value_of(const char *body, const char *begins)
{
    const char *at = strstr(body, begins);
    return at ? strtod(at + strlen(begins), NULL) : -1;
}

/* Workers that are alike are counted together, and machines beyond the first 256 in one sample. */
static void test_metrics__show_builds_hosts_and_keys(void **state)
{
    enum { MACHINES = 300, SHOWN = 256 };
    fixture *setup = *state;
    worker_seat *crowd = calloc(2 * MACHINES, sizeof *crowd);
    char *body = NULL;
    size_t size;
    const char *type;
    int samples = 0;
    assert_non_null(crowd);
    for (int i = 0; i < 2 * MACHINES; i++) {
        snprintf(crowd[i].build, sizeof crowd[i].build, "b1");
        snprintf(crowd[i].host, sizeof crowd[i].host, "h%d", i % MACHINES);
        snprintf(crowd[i].peer.key_name, sizeof crowd[i].peer.key_name, "k");
        crowd[i].next = i + 1 < 2 * MACHINES ? &crowd[i + 1] : NULL;
    }
    snprintf(crowd[MACHINES].build, sizeof crowd[0].build, "b2"); /* the second of h0 */
    setup->state.seats = crowd;
    FILE *out = open_memstream(&body, &size);
    assert_non_null(out);
    assert_int_equal(metrics_answer(&setup->state, "/metrics", out, &type), 200);
    fclose(out);
    assert_true(value_of(body, "prepd_worker_builds{build=\"b1\",host=\"h0\",key=\"k\"}") == 1);
    assert_true(value_of(body, "prepd_worker_builds{build=\"b1\",host=\"h1\",key=\"k\"}") == 2);
    /* 44 machines with two workers, and the second of h0, which came after all of them. */
    assert_true(value_of(body, "prepd_worker_builds{build=\"\",host=\"others\",key=\"\"}") ==
                2 * (MACHINES - SHOWN) + 1);
    for (const char *at = body; (at = strstr(at, "\nprepd_worker_builds{")); at++)
        samples++;
    assert_int_equal(samples, SHOWN + 1);
    assert_true(value_of(body, "prepd_build_info{version=\"" TESSERA_VERSION "\",build=\"b\"}") ==
                1);
    setup->state.seats = NULL;
    free(body);
    free(crowd);
}

static void test_healthz__is_503_with_the_reason(void **state)
{
    fixture *setup = *state;
    setup->state.answered_ns = clock_ns();
    assert_answer(&setup->state, "/healthz", 200, "ok\n");
    setup->state.answered_ns = clock_ns() - 51 * SECOND;
    assert_answer(&setup->state, "/healthz", 503,
                  "leases are out, and for several times prepd.sample_timeout");
    setup->state.answered_ns = clock_ns();
    setup->state.stopping = true;
    assert_answer(&setup->state, "/healthz", 503, "stopping\n");
}

/* Plays a service manager that wants a sign of life every 40 ms. Returns the socket on which it
 * listens. */
static int supervisor(const char *folder)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    snprintf(at.sun_path, sizeof at.sun_path, "%.80s/notify", folder);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(setenv("NOTIFY_SOCKET", at.sun_path, 1), 0);
    assert_int_equal(setenv("WATCHDOG_USEC", "40000", 1), 0);
    return fd;
}

static bool hears_of_life(int fd)
{
    char said[64] = "";
    return read(fd, said, sizeof said - 1) > 0 && strcmp(said, "WATCHDOG=1\n") == 0;
}

static void test_watchdog__hears_nothing_while_work_stalls(void **state)
{
    fixture *setup = *state;
    char *folder = harness_temp();
    const int fd = supervisor(folder);
    setup->state.answered_ns = 7 * SECOND;
    progress_watchdog(&setup->around, 7 * SECOND);
    assert_true(hears_of_life(fd));
    progress_watchdog(&setup->around, 7 * SECOND + SECOND / 1000); /* too soon for another sign */
    assert_false(hears_of_life(fd));
    progress_watchdog(&setup->around, 7 * SECOND + 50 * SECOND);
    assert_true(hears_of_life(fd));
    progress_watchdog(&setup->around, 7 * SECOND + 51 * SECOND);
    assert_false(hears_of_life(fd));
    setup->state.answered_ns = 7 * SECOND + 51 * SECOND; /* an answer came */
    progress_watchdog(&setup->around, 7 * SECOND + 52 * SECOND);
    assert_true(hears_of_life(fd));
    close(fd);
    harness_remove(&folder);
}

static void test_readyz__is_503_until_a_consumer_would_get_rows(void **state)
{
    fixture *setup = *state;
    assert_answer(&setup->state, "/readyz", 200, "ok\n");
    setup->state.seats = NULL;
    assert_answer(&setup->state, "/readyz", 503, "no worker has joined\n");
    setup->state.train.ready = false;
    assert_answer(&setup->state, "/readyz", 503, "the index is being built\n");
    setup->state.draining = true;
    assert_answer(&setup->state, "/readyz", 503, "leaving\n");
    assert_answer(&setup->state, "/healthz", 200, "ok\n"); /* a daemon that drains is healthy */
}

static void test_answer__names_its_paths(void **state)
{
    fixture *setup = *state;
    assert_answer(&setup->state, "/", 200, "<a href=\"/metrics\">");
    assert_answer(&setup->state, "/", 200, "<a href=\"/healthz\">");
    assert_answer(&setup->state, "/", 200, "<a href=\"/readyz\">");
    assert_answer(&setup->state, "/other", 404, "/metrics /healthz /readyz\n");
    assert_answer(&setup->state, "/healthz/", 404, "/healthz");
    assert_answer(&setup->state, "", 404, "/healthz");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup_metrics, teardown_metrics)
    const struct CMUnitTest tests[] = {
        TEST(test_metrics__show_builds_hosts_and_keys),
        TEST(test_unhealthy__only_after_the_time_work_may_take),
        TEST(test_unhealthy__not_without_work),
        TEST(test_healthz__is_503_with_the_reason),
        TEST(test_watchdog__hears_nothing_while_work_stalls),
        TEST(test_readyz__is_503_until_a_consumer_would_get_rows),
        TEST(test_answer__names_its_paths),
    };
    return cmocka_run_group_tests_name("metrics", tests, NULL, NULL);
}
