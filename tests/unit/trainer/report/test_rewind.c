/* SPDX-License-Identifier: Apache-2.0 */
/* test_rewind.c: the files with a line per step, when a run resumes from a checkpoint. Lines of
 * steps after the checkpoint are moved to a file beside, so that each step that stays has one
 * line. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trainer/report/rewind.h"

enum { TEXT = 4096 };

static char folder[] = "/tmp/test_rewind_XXXXXX";

static void path_of(const char *name, char out[64])
{
    snprintf(out, 64, "%s/%s", folder, name);
}

static void put_lines(const char *name, const char *text)
{
    char path[64];
    path_of(name, path);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void expect_lines(const char *name, const char *wanted)
{
    char path[64], text[TEXT];
    path_of(name, path);
    FILE *file = fopen(path, "re");
    if (!wanted) {
        assert_null(file);
        return;
    }
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    assert_string_equal(text, wanted);
}

static void begin_lines(const char *text)
{
    char path[64];
    path_of("set-aside-l", path);
    unlink(path);
    put_lines("l", text);
}

static void rewind_to(int64_t step, int64_t moved)
{
    int64_t found = -1;
    assert_ok(rewind_lines(folder, "l", step, &found));
    assert_int_equal(found, moved);
}

#define ONE   "{\"step\":1,\"loss\":3}\n"
#define TWO   "{\"step\":2,\"loss\":2}\n"
#define THREE "{\"step\":3,\"loss\":1}\n"
#define AGAIN "{\"step\":2,\"loss\":1.5}\n"

static void test_rewind_lines__leaves_ordered_lines_alone(void **state)
{
    (void)state;
    begin_lines(ONE TWO THREE);
    rewind_to(3, 0);
    rewind_to(9, 0);
    expect_lines("l", ONE TWO THREE);
    expect_lines("set-aside-l", NULL);
    int64_t moved = -1;
    assert_ok(rewind_lines(folder, "absent", 3, &moved));
    assert_int_equal(moved, 0);
    begin_lines("");
    rewind_to(0, 0);
    expect_lines("l", "");
}

static void test_rewind_lines__moves_later_steps(void **state)
{
    (void)state;
    begin_lines(ONE TWO THREE);
    rewind_to(1, 2);
    expect_lines("l", ONE);
    expect_lines("set-aside-l", TWO THREE);
    put_lines("l", ONE AGAIN);
    rewind_to(0, 2); /* from the beginning */
    expect_lines("l", "");
    expect_lines("set-aside-l", TWO THREE ONE AGAIN);
}

static void test_rewind_lines__moves_an_abandoned_branch(void **state)
{
    (void)state;
    begin_lines(ONE TWO THREE AGAIN); /* as a version that moved nothing left them */
    rewind_to(2, 2);
    expect_lines("l", ONE AGAIN);
    expect_lines("set-aside-l", TWO THREE);
}

static void test_rewind_lines__repairs_lines_cut_short(void **state)
{
    (void)state;
    begin_lines(ONE TWO "{\"step\":3,\"lo");
    rewind_to(2, 1);
    expect_lines("l", ONE TWO);
    put_lines("l",
              ONE "{\"step\":2,\"lo\n\nno line\n{\"no step\":1}\n" TWO "{\"step\":3,\"loss\":1}");
    rewind_to(3, 4);
    expect_lines("l", ONE TWO THREE); /* everything complete was kept */
    /* A process that died while it moved lines left half a line; the next one must not be appended
     * to it. */
    begin_lines(ONE TWO);
    put_lines("set-aside-l", "{\"step\":7,\"lo");
    rewind_to(1, 1);
    expect_lines("set-aside-l", "{\"step\":7,\"lo\n" TWO);
}

static void test_rewind_lines__names_the_file_it_cannot_write(void **state)
{
    (void)state;
    char path[64];
    int64_t moved = -1;
    begin_lines(ONE TWO);
    path_of(".l.tmp", path);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_fails(ST_IO, rewind_lines(folder, "l", 1, &moved), ".l.tmp");
    assert_int_equal(rmdir(path), 0);
    expect_lines("l", ONE TWO);
    rewind_to(1, 1);
    expect_lines("l", ONE);
    expect_lines("set-aside-l", TWO TWO); /* twice is better than never */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rewind_lines__leaves_ordered_lines_alone),
        cmocka_unit_test(test_rewind_lines__moves_later_steps),
        cmocka_unit_test(test_rewind_lines__moves_an_abandoned_branch),
        cmocka_unit_test(test_rewind_lines__repairs_lines_cut_short),
        cmocka_unit_test(test_rewind_lines__names_the_file_it_cannot_write),
    };
    if (!mkdtemp(folder))
        return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    static const char *const left[] = {"l", "set-aside-l"};
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
        char path[64];
        path_of(left[i], path);
        unlink(path);
    }
    rmdir(folder);
    return failed;
}
