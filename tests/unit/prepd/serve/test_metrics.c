/* Tests of what a service manager learns: the codes and reasons of /healthz and /readyz, and the
 * signs of life that its watchdog gets. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "prepd/serve/dispatch_state.h"
#include "tests/harness.h"

static const int64_t S = 1000000000;

/* A daemon with one worker at work. The tests say when its last answer came. */
typedef struct fixture {
    dispatch d;
    conf c;
    worker_seat seat;
    lease work;
} fixture;

static int setup_metrics(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->c.prepd_sample_timeout = 5; /* the watchdog waits 4 x 5 + 30 s */
    f->d.options = &f->c;
    f->d.seats = &f->seat;
    f->d.train.ready = true;
    f->seat.work = &f->work;
    *state = f;
    return 0;
}

static int teardown_metrics(void **state)
{
    free(*state);
    return 0;
}

/* The answer must have this code, and its body these words. */
static void assert_answer(dispatch *d, const char *path, int code, const char *words)
{
    char body[2048] = "";
    const char *type = "";
    FILE *out = fmemopen(body, sizeof body, "w");
    assert_non_null(out);
    assert_int_equal(metrics_answer(d, path, out, &type), code);
    fclose(out);
    assert_string_equal(type, strcmp(path, "/") == 0 ? "text/html; charset=utf-8" : "");
    assert_non_null(strstr(body, words));
}

static void test_unhealthy__only_after_the_time_work_may_take(void **state)
{
    fixture *f = *state;
    f->d.answered_ns = 7 * S;
    assert_null(metrics_unhealthy(&f->d, 7 * S + 50 * S));
    assert_non_null(
        strstr(metrics_unhealthy(&f->d, 7 * S + 50 * S + S / 10), "none has made progress"));
    f->c.prepd_sample_timeout = 6;
    assert_null(metrics_unhealthy(&f->d, 7 * S + 50 * S + S / 10));
}

static void test_unhealthy__not_without_work(void **state)
{
    fixture *f = *state;
    f->seat.work = NULL;
    assert_null(metrics_unhealthy(&f->d, 1000 * S));
    worker_seat last = {.work = &f->work};
    f->seat.next = &last; /* one worker at work among several is enough */
    assert_non_null(metrics_unhealthy(&f->d, 1000 * S));
    f->d.seats = NULL;
    assert_null(metrics_unhealthy(&f->d, 1000 * S));
}

static void test_healthz__is_503_with_the_reason(void **state)
{
    fixture *f = *state;
    f->d.answered_ns = clock_ns();
    assert_answer(&f->d, "/healthz", 200, "ok\n");
    f->d.answered_ns = clock_ns() - 51 * S;
    assert_answer(&f->d, "/healthz", 503,
                  "leases are out, and for several times prepd.sample_timeout");
    f->d.answered_ns = clock_ns();
    f->d.stopping = true;
    assert_answer(&f->d, "/healthz", 503, "stopping\n");
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
    fixture *f = *state;
    char *folder = harness_temp();
    const int fd = supervisor(folder);
    f->d.answered_ns = 7 * S;
    dispatch_watchdog(&f->d, 7 * S);
    assert_true(hears_of_life(fd));
    dispatch_watchdog(&f->d, 7 * S + S / 1000); /* too soon for another sign */
    assert_false(hears_of_life(fd));
    dispatch_watchdog(&f->d, 7 * S + 50 * S);
    assert_true(hears_of_life(fd));
    dispatch_watchdog(&f->d, 7 * S + 51 * S);
    assert_false(hears_of_life(fd));
    f->d.answered_ns = 7 * S + 51 * S; /* an answer came */
    dispatch_watchdog(&f->d, 7 * S + 52 * S);
    assert_true(hears_of_life(fd));
    close(fd);
    harness_remove(&folder);
}

static void test_readyz__is_503_until_a_consumer_would_get_rows(void **state)
{
    fixture *f = *state;
    assert_answer(&f->d, "/readyz", 200, "ok\n");
    f->d.seats = NULL;
    assert_answer(&f->d, "/readyz", 503, "no worker has joined\n");
    f->d.train.ready = false;
    assert_answer(&f->d, "/readyz", 503, "the index is being built\n");
    f->d.draining = true;
    assert_answer(&f->d, "/readyz", 503, "leaving\n");
    assert_answer(&f->d, "/healthz", 200, "ok\n"); /* a daemon that drains is healthy */
}

static void test_answer__names_its_paths(void **state)
{
    fixture *f = *state;
    assert_answer(&f->d, "/", 200, "<a href=\"/metrics\">");
    assert_answer(&f->d, "/", 200, "<a href=\"/healthz\">");
    assert_answer(&f->d, "/", 200, "<a href=\"/readyz\">");
    assert_answer(&f->d, "/other", 404, "/metrics /healthz /readyz\n");
    assert_answer(&f->d, "/healthz/", 404, "/healthz");
    assert_answer(&f->d, "", 404, "/healthz");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup_metrics, teardown_metrics)
    const struct CMUnitTest tests[] = {
        TEST(test_unhealthy__only_after_the_time_work_may_take),
        TEST(test_unhealthy__not_without_work),
        TEST(test_healthz__is_503_with_the_reason),
        TEST(test_watchdog__hears_nothing_while_work_stalls),
        TEST(test_readyz__is_503_until_a_consumer_would_get_rows),
        TEST(test_answer__names_its_paths),
    };
    return cmocka_run_group_tests_name("metrics", tests, NULL, NULL);
}
