/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of image_files.h: image files are read only below the data root, whole, and only with the
 * size that the index recorded. */
#include "prepd/worker/media/image_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/harness.h"

static void test_file_resolve__stays_under_the_root(void **state)
{
    (void)state;
    char out[64];
    assert_ok(file_resolve("/data", "images/a..b.jpg", out, sizeof(out)));
    assert_string_equal(out, "/data/images/a..b.jpg");
    assert_ok(file_resolve("/data", "..a/b", out, sizeof(out)));
    assert_fails(ST_BAD_INPUT, file_resolve("/data", "/etc/passwd", out, sizeof(out)), "relative");
    assert_fails(ST_BAD_INPUT, file_resolve("/data", "", out, sizeof(out)), "relative");
    assert_fails(ST_BAD_INPUT, file_resolve("/data", "..", out, sizeof(out)), "..");
    assert_fails(ST_BAD_INPUT, file_resolve("/data", "a/../../b", out, sizeof(out)), "..");
    assert_fails(ST_BAD_INPUT, file_resolve("/data", "a//../b", out, sizeof(out)), "..");
    assert_fails(ST_BAD_INPUT, file_resolve("/data", "a/..", out, sizeof(out)), "..");
    assert_fails(ST_BAD_INPUT, file_resolve("/data", "a/b/c", out, 8), "longer than 8");
}

static void test_file_read__refuses_a_file_that_changed(void **state)
{
    (void)state;
    char *folder = harness_temp();
    char path[512], pipe_path[512];
    arena memory;
    span bytes;
    file_view view;
    arena_init(&memory, 0);
    snprintf(path, sizeof(path), "%s/x.jpg", folder);
    snprintf(pipe_path, sizeof(pipe_path), "%s/pipe", folder);
    assert_fails(ST_NO_INPUT, file_read(path, 100, 5, &memory, &bytes), "No such file");
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite("hello", 1, 5, file), 5);
    assert_int_equal(fclose(file), 0);
    assert_ok(file_read(path, 100, 5, &memory, &bytes));
    assert_int_equal(bytes.size, 5);
    assert_memory_equal(bytes.data, "hello", 5);
    assert_ok(file_read(path, 100, -1, &memory, &bytes));
    assert_fails(ST_NO_INPUT, file_read(path, 100, 6, &memory, &bytes), "recorded 6");
    assert_fails(ST_BAD_INPUT, file_read(path, 4, 5, &memory, &bytes), "allows 4");
    assert_ok(file_map(path, 100, &view));
    assert_memory_equal(view.bytes.data, "hello", 5);
    file_unmap(&view);
    assert_ok(file_start(path, -1, -1, 100, 3, &memory, &view));
    assert_true(view.bytes.size == 3 && view.file_bytes == 5 && view.mtime_ns > 0);
    assert_memory_equal(view.bytes.data, "hel", 3);
    /* this piece is shorter than what is asked for */
    assert_ok(file_start(path, 2, 3, 100, 100, &memory, &view));
    assert_true(view.bytes.size == 3 && view.file_bytes == 3);
    assert_memory_equal(view.bytes.data, "llo", 3);
    assert_fails(ST_BAD_INPUT, file_start(path, -1, -1, 4, 3, &memory, &view), "allows 4");
    assert_true(view.file_bytes == 5 && view.mtime_ns > 0);
    assert_fails(ST_NO_INPUT, file_start(path, 3, 3, 100, 3, &memory, &view), "the file changed");
    assert_int_equal(truncate(path, 0), 0);
    assert_fails(ST_BAD_INPUT, file_start(path, -1, -1, 100, 3, &memory, &view), "empty");
    assert_fails(ST_BAD_INPUT, file_read(path, 100, 0, &memory, &bytes), "empty");
    assert_fails(ST_NO_INPUT, file_read(path, 100, 5, &memory, &bytes), "the file changed");
    assert_fails(ST_BAD_INPUT, file_map(path, 100, &view), "empty");
    /* kept, so that a repaired file is seen to have changed since */
    assert_true(view.mtime_ns > 0);
    assert_int_equal(mkfifo(pipe_path, 0600), 0); /* opening it must not wait for a writer */
    assert_fails(ST_BAD_INPUT, file_read(pipe_path, 100, -1, &memory, &bytes), "regular");
    assert_fails(ST_BAD_INPUT, file_read(folder, 100, -1, &memory, &bytes), "regular");
    arena_done(&memory);
    harness_remove(&folder);
}

/* Another machine may be able to read the file, so it is no fault of the file. */
static void test_file_read__an_unreadable_file_is_not_a_bad_one(void **state)
{
    (void)state;
    char *folder = harness_temp();
    char path[512];
    arena memory;
    span bytes;
    file_view view;
    int64_t mtime_ns;
    arena_init(&memory, 0);
    snprintf(path, sizeof(path), "%s/loop", folder);
    /* fails with ELOOP even for root, who may read what has no permissions */
    assert_int_equal(symlink(path, path), 0);
    assert_fails(ST_NO_INPUT, file_read(path, 100, 5, &memory, &bytes), "cannot be opened");
    assert_fails(ST_NO_INPUT, file_map(path, 100, &view), "cannot be opened");
    assert_fails(ST_NO_INPUT, file_read_piece(path, 0, 5, 100, &memory, &bytes, &mtime_ns),
                 "cannot be opened");
    arena_done(&memory);
    harness_remove(&folder);
}

/* The time of the file is recorded with the refusal. Without it the index would look stale at every
 * start. */
static void test_file_read_piece__gives_the_time_of_a_refused_piece(void **state)
{
    (void)state;
    char *folder = harness_temp();
    char path[512];
    arena memory;
    span bytes;
    int64_t mtime_ns = 0;
    arena_init(&memory, 0);
    snprintf(path, sizeof(path), "%s/x.tar", folder);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite("hello", 1, 5, file), 5);
    assert_int_equal(fclose(file), 0);
    assert_fails(ST_BAD_INPUT, file_read_piece(path, 2, 0, 100, &memory, &bytes, &mtime_ns),
                 "empty");
    assert_true(mtime_ns > 0);
    mtime_ns = 0;
    assert_fails(ST_NO_INPUT, file_read_piece(path, 2, 4, 100, &memory, &bytes, &mtime_ns),
                 "changed");
    assert_true(mtime_ns > 0);
    arena_done(&memory);
    harness_remove(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file_resolve__stays_under_the_root),
        cmocka_unit_test(test_file_read__refuses_a_file_that_changed),
        cmocka_unit_test(test_file_read__an_unreadable_file_is_not_a_bad_one),
        cmocka_unit_test(test_file_read_piece__gives_the_time_of_a_refused_piece),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
