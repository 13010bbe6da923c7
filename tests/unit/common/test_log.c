/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of log.h: an event makes one line, as plain text and as JSON, whatever characters its text
 * holds and even if a signal interrupts the write. */
#include "tests/harness.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "common/json/json.h"
#include "common/program/log.h"

/* Returns what say() logs to standard error. The text is valid until the next call. */
static const char *capture_log(void (*say)(void))
{
    static char text[32768];
    int keep = dup(STDERR_FILENO), both[2];
    assert_int_equal(pipe(both), 0);
    fflush(stderr);
    dup2(both[1], STDERR_FILENO);
    close(both[1]);
    say();
    dup2(keep, STDERR_FILENO);
    close(keep);
    ssize_t got = read(both[0], text, sizeof text - 1);
    close(both[0]);
    text[got > 0 ? got : 0] = 0;
    return text;
}

static void say_some(void)
{
    log_debug("unheard");
    log_info("index built samples=%d seconds=%.1f", 444, 1.2);
    log_warn("file \"a\nb\x1b[31m\" is odd");
    (void)FAIL_IN(ST_IO, "x.jpg", "gone");
    log_status();
}

static void test_plain__one_line_each_and_nothing_hidden(void **state)
{
    (void)state;
    log_init("prepd", LOG_INFO, false);
    const char *text = capture_log(say_some);
    int lines = 0;
    for (const char *at = text; *at; at++)
        lines += *at == '\n';
    assert_int_equal(lines, 3);
    assert_null(strstr(text, "unheard"));
    assert_non_null(strstr(text, " info  prepd: index built samples=444 seconds=1.2\n"));
    assert_non_null(strstr(text, " warn  prepd: file \"a\\x0ab\\x1b[31m\" is odd\n"));
    assert_non_null(strstr(text, " error prepd: x.jpg: gone\n"));
}

static void test_json__fields_are_members(void **state)
{
    (void)state;
    log_init("worker 3", LOG_INFO, true);
    char text[32768];
    snprintf(text, sizeof text, "%s", capture_log(say_some));
    char *rest = NULL;
    int lines = 0;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        json_value *value = NULL;
        assert_ok(json_parse(line, strlen(line), "log", &value));
        assert_string_equal(json_text(json_find(value, "role"), ""), "worker 3");
        if (lines++ == 0) {
            const json_value *fields = json_find(value, "fields");
            assert_string_equal(json_text(json_find(value, "event"), ""), "index built");
            assert_string_equal(json_text(json_find(value, "level"), ""), "info");
            assert_int_equal(json_int(json_find(fields, "samples"), 0), 444);
            assert_true(json_real(json_find(fields, "seconds"), 0) == 1.2);
        }
        json_free(&value);
    }
    assert_int_equal(lines, 3);
}

static const char *words; /* what say_words() logs */

static void say_words(void)
{
    log_info("%s", words);
}

/* Logs text, and compares the event and the fields of the JSON line that comes of it; no fields are
 * "". */
static void expect_fields(const char *text, const char *event, const char *fields)
{
    json_value *value = NULL;
    json_writer writer;
    words = text;
    const char *line = capture_log(say_words);
    assert_ok(json_parse(line, strlen(line), "log", &value));
    assert_string_equal(json_text(json_find(value, "event"), ""), event);
    json_writer_init(&writer);
    if (json_find(value, "fields"))
        json_put_value(&writer, json_find(value, "fields"));
    assert_string_equal(writer.text ? writer.text : "", fields);
    json_writer_done(&writer);
    json_free(&value);
}

static void test_json__quoted_values_are_whole(void **state)
{
    (void)state;
    log_init("prepd", LOG_INFO, true);
    expect_fields("worker replaced pid=7 cause=\"signal 9 (Killed)\"", "worker replaced",
                  "{\"pid\":7,\"cause\":\"signal 9 (Killed)\"}");
    expect_fields("slow reason=\"a b\" segments=2 width=64", "slow",
                  "{\"reason\":\"a b\",\"segments\":2,\"width\":64}");
    expect_fields("refused id=5 cause=\"of \"x y\" is a=b\"", "refused",
                  "{\"id\":5,\"cause\":\"of \\\"x y\\\" is a=b\"}");
    expect_fields("x a=\"\\\"q\\\" \\\\\" b=\"2\" c=", "x",
                  "{\"a\":\"\\\"q\\\" \\\\\",\"b\":\"2\",\"c\":\"\"}");
    expect_fields("cause=\"\"", "", "{\"cause\":\"\"}");
    /* What stands in quotation marks is not a field, and a value cannot forge a second field. */
    expect_fields("there is no option \"x a=b\"", "there is no option \"x a=b\"", "");
    expect_fields("bad id=5 cause=\"x\" id=\"7\"", "bad",
                  "{\"id\":5,\"cause\":\"x\\\" id=\\\"7\"}");
    expect_fields("a=1 then a=\"b", "a=1 then a=\"b", "");
    expect_fields("a=1 then b=2 ", "a=1 then", "{\"b\":2}");
    expect_fields("", "", "");
}

static void say_controls(void)
{
    log_info("%s", "a\xc2\x9b"
                   "31m\xc2\xa0\xe2\x82\xac\x9b"
                   "b");
}

static void test_plain__controls_beyond_ascii_are_escaped(void **state)
{
    (void)state;
    log_init("prepd", LOG_INFO, false);
    const char *text = capture_log(say_controls);
    assert_non_null(strstr(text, "a\\u009b31m\xc2\xa0\xe2\x82\xac\\x9bb\n"));
}

static void on_alarm(int signal)
{
    (void)signal;
}

/* Empties the full pipe, but only after the alarm has interrupted the write of the event. */
static void *read_late(void *user)
{
    const int *fd = (const int *)user;
    static char bytes[1 << 20];
    size_t size = 0;
    ssize_t got;
    usleep(300000);
    while (size < sizeof bytes - 1 && (got = read(*fd, bytes + size, sizeof bytes - 1 - size)) > 0)
        size += (size_t)got;
    bytes[size] = 0;
    return strstr(bytes, "prepd: late");
}

static void test_write__goes_on_after_a_signal(void **state)
{
    (void)state;
    const struct itimerval once = {.it_value.tv_usec = 50000};
    /* without SA_RESTART, so write() ends early */
    const struct sigaction act = {.sa_handler = on_alarm};
    int keep = dup(STDERR_FILENO), both[2];
    struct sigaction before;
    pthread_t reader;
    sigset_t alarm;
    void *found;
    log_init("prepd", LOG_INFO, false);
    assert_int_equal(pipe(both), 0);
    assert_int_equal(fcntl(both[1], F_SETFL, O_NONBLOCK), 0);
    while (write(both[1], "x", 1) == 1)
        ;
    assert_int_equal(fcntl(both[1], F_SETFL, 0), 0);
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm, NULL);
    assert_int_equal(pthread_create(&reader, NULL, read_late, &both[0]), 0);
    pthread_sigmask(SIG_UNBLOCK, &alarm, NULL);
    sigaction(SIGALRM, &act, &before);
    dup2(both[1], STDERR_FILENO);
    close(both[1]);
    setitimer(ITIMER_REAL, &once, NULL);
    log_info("late");
    dup2(keep, STDERR_FILENO);
    close(keep);
    pthread_join(reader, &found);
    close(both[0]);
    sigaction(SIGALRM, &before, NULL);
    assert_non_null(found);
}

static void say_long(void)
{
    char big[8000];
    memset(big, '\x01', sizeof big - 1);
    big[sizeof big - 1] = 0;
    log_error("%s", big);
}

static void test_long_text__is_cut_to_one_line(void **state)
{
    (void)state;
    for (int json = 0; json < 2; json++) {
        log_init("r", LOG_ERROR, json);
        const char *text = capture_log(say_long);
        size_t length = strlen(text);
        assert_true(length > 1000 && text[length - 1] == '\n' &&
                    strchr(text, '\n') == text + length - 1);
    }
    assert_false(log_on(LOG_WARN));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain__one_line_each_and_nothing_hidden),
        cmocka_unit_test(test_json__fields_are_members),
        cmocka_unit_test(test_json__quoted_values_are_whole),
        cmocka_unit_test(test_plain__controls_beyond_ascii_are_escaped),
        cmocka_unit_test(test_write__goes_on_after_a_signal),
        cmocka_unit_test(test_long_text__is_cut_to_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
