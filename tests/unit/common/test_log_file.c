/* SPDX-License-Identifier: Apache-2.0 */
/* test_log_file.c: a log's file is renamed at its size,
 * and followed when someone else renames it. */
#include "tests/harness.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/program/log.h"

enum { LINE = 10 }; /* bytes of a line */

static void read_log(const char *path, int age, char out[256])
{
    char name[4096];
    snprintf(name, sizeof name, age ? "%s.%d" : "%s", path, age);
    FILE *file = fopen(name, "r");
    const size_t size = file ? fread(out, 1, 255, file) : 0;
    out[size] = 0;
    if (file)
        fclose(file);
}

static void assert_log(const char *path, int age, const char *text)
{
    char got[256];
    read_log(path, age, got);
    assert_string_equal(got, text);
}

static void write_lines(int from, int to)
{
    for (int i = from; i <= to; i++) {
        char line[LINE + 1];
        snprintf(line, sizeof line, "line %04d\n", i);
        log_file_write(line, LINE);
    }
}

static void test_log_file__three_older_ones_are_kept(void **state)
{
    (void)state;
    char *folder = harness_temp(), path[4096];
    snprintf(path, sizeof path, "%s/rank-0.log", folder);
    assert_ok(log_file_open(path, 2 * LINE));
    write_lines(1, 2);
    assert_log(path, 1, "");
    write_lines(3, 3);
    assert_log(path, 0, "line 0003\n");
    assert_log(path, 1, "line 0001\nline 0002\n");
    write_lines(4, 11);
    assert_log(path, 0, "line 0011\n");
    assert_log(path, 1, "line 0009\nline 0010\n");
    assert_log(path, 3, "line 0005\nline 0006\n");
    assert_log(path, 4, "");
    /* A run that goes on counts what the file has already. */
    assert_ok(log_file_open(path, 2 * LINE));
    write_lines(12, 13);
    assert_log(path, 0, "line 0013\n");
    harness_remove(&folder);
}

static void test_log_file__a_line_above_the_limit_is_whole(void **state)
{
    (void)state;
    char *folder = harness_temp(), path[4096];
    snprintf(path, sizeof path, "%s/rank-0.log", folder);
    assert_ok(log_file_open(path, LINE / 2));
    write_lines(1, 2);
    assert_log(path, 0, "line 0002\n");
    assert_log(path, 1, "line 0001\n");
    harness_remove(&folder);
}

static void test_log_file__follows_logrotate(void **state)
{
    (void)state;
    char *folder = harness_temp(), path[4096], moved[4096];
    snprintf(path, sizeof path, "%s/rank-0.log", folder);
    snprintf(moved, sizeof moved, "%s/elsewhere", folder);
    assert_ok(log_file_open(path, 0));
    write_lines(1, 1);
    assert_int_equal(rename(path, moved), 0);
    write_lines(2, 2);
    assert_log(moved, 0, "line 0001\n");
    assert_log(path, 0, "line 0002\n");
    assert_int_equal(unlink(path), 0);
    write_lines(3, 3);
    assert_log(path, 0, "line 0003\n");
    harness_remove(
        &folder); /* now no file can be made: the open one is written, and nothing ends */
    write_lines(4, 4);
}

static void test_log_file__a_place_that_takes_none_is_told(void **state)
{
    (void)state;
    assert_fails(ST_CANT_CREATE, log_file_open("/nonexistent/log", 0), "cannot open the log file");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_log_file__three_older_ones_are_kept),
        cmocka_unit_test(test_log_file__a_line_above_the_limit_is_whole),
        cmocka_unit_test(test_log_file__follows_logrotate),
        cmocka_unit_test(test_log_file__a_place_that_takes_none_is_told),
    };
    return cmocka_run_group_tests_name("log_file", tests, NULL, NULL);
}
