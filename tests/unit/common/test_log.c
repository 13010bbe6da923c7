/* log.h: one event, one line, in both forms, whatever the text holds. */
#include "tests/harness.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/json.h"
#include "common/log.h"

/* What the events of say() write to stderr. */
static const char *captured(void (*say)(void))
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
    ssize_t n = read(both[0], text, sizeof text - 1);
    close(both[0]);
    text[n > 0 ? n : 0] = 0;
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
    const char *text = captured(say_some);
    int lines = 0;
    for (const char *p = text; *p; p++)
        lines += *p == '\n';
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
    snprintf(text, sizeof text, "%s", captured(say_some));
    char *rest = NULL;
    int lines = 0;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        json_value *v = NULL;
        assert_ok(json_parse(line, strlen(line), "log", &v));
        assert_string_equal(json_text(json_find(v, "role"), ""), "worker 3");
        if (lines++ == 0) {
            const json_value *fields = json_find(v, "fields");
            assert_string_equal(json_text(json_find(v, "event"), ""), "index built");
            assert_string_equal(json_text(json_find(v, "level"), ""), "info");
            assert_int_equal(json_int(json_find(fields, "samples"), 0), 444);
            assert_true(json_real(json_find(fields, "seconds"), 0) == 1.2);
        }
        json_free(&v);
    }
    assert_int_equal(lines, 3);
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
        const char *text = captured(say_long);
        size_t n = strlen(text);
        assert_true(n > 1000 && text[n - 1] == '\n' && strchr(text, '\n') == text + n - 1);
    }
    assert_false(log_on(LOG_WARN));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain__one_line_each_and_nothing_hidden),
        cmocka_unit_test(test_json__fields_are_members),
        cmocka_unit_test(test_long_text__is_cut_to_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
