/* SPDX-License-Identifier: Apache-2.0 */
/* test_snapshot_file.c: the file of copies in memory: what one process has written whole another
 * one reads; what is torn, changed, of another run or of another shape is refused with its reason;
 * and a file system without room is noticed before anything is written. */
#include "tests/harness.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trainer/checkpoint/save/snapshot_file.h"

enum { BLOCKS = 3, PAGE = 4096, BIG = (1 << 25) + 12345 /* more than one piece of a hash */ };

static const int64_t SIZES[BLOCKS] = {BIG, 1000, 0};
static char *folder;
static char path[STATUS_PATH_MAX];

static snapshot_shape shape_of(uint8_t run, const char *layout)
{
    return (snapshot_shape){.run = {{run}},
                            .layout = layout,
                            .blocks = BLOCKS,
                            .bytes = {SIZES[0], SIZES[1], SIZES[2]}};
}

static int setup(void **unused)
{
    (void)unused;
    folder = harness_temp();
    snprintf(path, sizeof path, "%s/copy", folder);
    return 0;
}

static int teardown(void **unused)
{
    (void)unused;
    harness_remove(&folder);
    return 0;
}

static void fill(const snapshot_file *file, int side, char with)
{
    for (int i = 0; i < BLOCKS; i++)
        memset(snapshot_file_block(file, side, i), with + i, (size_t)SIZES[i]);
}

static void write_side(snapshot_file *file, int side, int64_t step, char with)
{
    char text[32];
    snprintf(text, sizeof text, "state of %d", (int)step);
    assert_ok(snapshot_file_begin(file, side));
    fill(file, side, with);
    assert_ok(snapshot_file_end(file, side, step, text));
}

/* A file whose sides have steps 7 and 8. */
static void write_both(void)
{
    const snapshot_shape shape = shape_of(1, "a 10\nb 20\n");
    snapshot_file *file;
    assert_ok(snapshot_file_make(path, &shape, &file));
    assert_int_equal(snapshot_file_step(file, 0), 0);
    write_side(file, 0, 7, 'a');
    write_side(file, 1, 8, 'p');
    snapshot_file_close(&file);
}

static snapshot_file *open_again(void)
{
    const snapshot_shape shape = shape_of(1, "a 10\nb 20\n");
    snapshot_file *file;
    assert_ok(snapshot_file_open(path, &shape, &file));
    return file;
}

static void test_snapshot_file__both_sides_come_back(void **unused)
{
    (void)unused;
    write_both();
    snapshot_file *file = open_again();
    for (int side = 0; side < SNAPSHOT_SIDES; side++) {
        char *text, wanted[32];
        assert_int_equal(snapshot_file_step(file, side), 7 + side);
        assert_ok(snapshot_file_check(file, side, 1 + side));
        assert_ok(snapshot_file_text(file, side, &text));
        snprintf(wanted, sizeof wanted, "state of %d", 7 + side);
        assert_string_equal(text, wanted);
        free(text);
        const char *block = snapshot_file_block(file, side, 0);
        assert_true(block[0] == (side ? 'p' : 'a') && block[BIG - 1] == block[0]);
        assert_true(*(char *)snapshot_file_block(file, side, 1) == block[0] + 1);
    }
    snapshot_file_close(&file);
}

/* The process died while it copied, or before it had hashed the copy. */
static void test_snapshot_file__a_torn_side_has_no_step(void **unused)
{
    (void)unused;
    write_both();
    snapshot_file *file = open_again();
    assert_ok(snapshot_file_begin(file, 0));
    memset(snapshot_file_block(file, 0, 0), 'z', BIG / 2);
    snapshot_file_close(&file);
    file = open_again();
    assert_int_equal(snapshot_file_step(file, 0), 0);
    assert_int_equal(snapshot_file_step(file, 1), 8);
    assert_ok(snapshot_file_check(file, 1, 2));
    snapshot_file_close(&file);
}

static void flip(int64_t at)
{
    unsigned char byte = 0;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 0x10;
    assert_true(pwrite(fd, &byte, 1, at) == 1);
    close(fd);
}

/* A flipped bit is found wherever it lies: in a block, its text, its record or the head. */
static void test_snapshot_file__a_changed_bit_is_found(void **unused)
{
    (void)unused;
    const snapshot_shape shape = shape_of(1, "a 10\nb 20\n");
    const int64_t data = 4 * PAGE, text = snapshot_file_bytes(&shape);
    snapshot_file *file;
    char *state;
    write_both();
    flip(data + BIG - 1);
    flip(text + 3);
    file = open_again();
    assert_fails(ST_BAD_INPUT, snapshot_file_check(file, 0, 4), "block 0 of step 7");
    assert_fails(ST_BAD_INPUT, snapshot_file_text(file, 0, &state), "the state of step 7");
    assert_ok(snapshot_file_check(file, 1, 4));
    snapshot_file_close(&file);
    flip(2 * PAGE);
    file = open_again();
    assert_int_equal(snapshot_file_step(file, 0), 7);
    assert_int_equal(snapshot_file_step(file, 1), 0);
    snapshot_file_close(&file);
    flip(16);
    assert_fails(ST_BAD_INPUT, snapshot_file_open(path, &shape, &file), "head is not whole");
}

static void test_snapshot_file__others_files_are_refused(void **unused)
{
    (void)unused;
    const snapshot_shape other_run = shape_of(2, "a 10\nb 20\n"),
                         other_layout = shape_of(1, "a 10\nb 21\n"),
                         own = shape_of(1, "a 10\nb 20\n");
    snapshot_file *file;
    write_both();
    assert_fails(ST_BAD_INPUT, snapshot_file_open(path, &other_run, &file), "of another run");
    assert_fails(ST_BAD_INPUT, snapshot_file_open(path, &other_layout, &file),
                 "other parts of the model");
    assert_int_equal(truncate(path, 6 * PAGE), 0);
    assert_fails(ST_BAD_INPUT, snapshot_file_open(path, &own, &file), "shorter");
    assert_int_equal(truncate(path, 100), 0);
    assert_fails(ST_BAD_INPUT, snapshot_file_open(path, &own, &file), "too early");
    assert_int_equal(unlink(path), 0);
    assert_fails(ST_NO_INPUT, snapshot_file_open(path, &own, &file), "No such file");
    assert_int_equal(symlink("/etc/passwd", path), 0);
    assert_fails(ST_CONFIG, snapshot_file_open(path, &own, &file), "");
    assert_int_equal(unlink(path), 0);
    if (mkfifo(path, 0600) == 0)
        assert_fails(ST_CONFIG, snapshot_file_open(path, &own, &file), "not a file of this user");
}

static void test_snapshot_file__too_little_room_leaves_nothing(void **unused)
{
    (void)unused;
    snapshot_shape shape = shape_of(1, "");
    snapshot_file *file;
    struct stat about;
    assert_ok(snapshot_file_room("/tmp", &shape, 1));
    assert_fails(ST_CANT_CREATE, snapshot_file_room("/tmp", &shape, INT_MAX), "there is room for");
    shape.bytes[0] = INT64_MAX / 8;
    assert_fails(ST_CANT_CREATE, snapshot_file_make(path, &shape, &file), "there is no room for");
    assert_int_equal(stat(path, &about), -1);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(test_snapshot_file__both_sides_come_back),
        CASE(test_snapshot_file__a_torn_side_has_no_step),
        CASE(test_snapshot_file__a_changed_bit_is_found),
        CASE(test_snapshot_file__others_files_are_refused),
        CASE(test_snapshot_file__too_little_room_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
