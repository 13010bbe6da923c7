/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the shell's calls where the system interrupts them, or does less than it was asked for:
 * a file is sent whole, a file is not taken for one that is missing, a line is read whole. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "prepd/serve/shell.h"
#include "tests/harness.h"
#include "tests/unit/prepd/serve/still_world.h"

static bool troubled; /* the system interrupts every other call, and does little in the others */
static int calls;

static bool is_interrupted(void)
{
    if (!troubled || ++calls % 2 == 0)
        return false;
    errno = EINTR;
    return true;
}

static size_t a_little(size_t size)
{
    return troubled && size > 3 ? 3 : size;
}

ssize_t __real_read(int fd, void *to, size_t size);
ssize_t __wrap_read(int fd, void *to, size_t size);
ssize_t __wrap_read(int fd, void *to, size_t size)
{
    return is_interrupted() ? -1 : __real_read(fd, to, a_little(size));
}

ssize_t __real_pread(int fd, void *to, size_t size, off_t offset);
ssize_t __wrap_pread(int fd, void *to, size_t size, off_t offset);
ssize_t __wrap_pread(int fd, void *to, size_t size, off_t offset)
{
    return is_interrupted() ? -1 : __real_pread(fd, to, a_little(size), offset);
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    int mode = 0;
    if (flags & O_CREAT) {
        va_list args;
        va_start(args, flags);
        mode = va_arg(args, int);
        va_end(args);
    }
    return is_interrupted() ? -1 : __real_open(path, flags, mode);
}

/* A data set of one file. */
static char *folder;

static const char *name_it(const dataset *set, int64_t image)
{
    (void)set, (void)image;
    return "0.jpg";
}

static const char *root_of(const dataset *set)
{
    (void)set;
    return folder;
}

static const dataset_vtable vtable = {.name = "one file", .image_path = name_it, .root = root_of};
static dataset data = {&vtable};
static const char text[] = "what the file holds, byte after byte";

static void write_file(void)
{
    char path[512];
    folder = harness_temp();
    snprintf(path, sizeof path, "%s/0.jpg", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, sizeof text, file), sizeof text);
    assert_int_equal(fclose(file), 0);
}

static void test_ship_file__is_whole_after_interruptions(void **state)
{
    (void)state;
    shell around = {0};
    conf options = {.image_file_bytes = 1000};
    const outside world = shell_outside(&around);
    const source section = {.data = &data, .options = options};
    image_place place;
    wire_msg *parts;
    json_writer out;
    char *json;
    write_file();
    assert_ok(wire_msg_new(&parts));
    dataset_image_place(&data, 0, &place);
    json_writer_init(&out);
    json_begin_object(&out);
    troubled = true;
    calls = 1; /* the file can be opened */
    const status st = world.ship_file(world.shell, &section, 0, &place, NULL, 1, parts, &out);
    troubled = false;
    assert_ok(st);
    json_end_object(&out);
    assert_ok(json_writer_take(&out, &json, NULL));
    assert_null(strstr(json, "errno"));
    assert_int_equal(wire_msg_parts(parts), 1);
    assert_int_equal(wire_msg_part(parts, 0).size, sizeof text);
    assert_memory_equal(wire_msg_part(parts, 0).data, text, sizeof text);
    assert_true(calls > 2 * (int)sizeof text / 3);
    free(json);
    json_writer_done(&out);
    wire_msg_free(&parts);
    harness_remove(&folder);
}

static void test_look_at__an_interruption_is_no_missing_file(void **state)
{
    (void)state;
    shell around = {0};
    const outside world = shell_outside(&around);
    const source section = {.data = &data};
    int64_t size = 0;
    write_file();
    troubled = true;
    calls = 0;
    const sight seen = world.look_at(world.shell, &section, "0.jpg", &size);
    troubled = false;
    assert_int_not_equal(seen, SIGHT_GONE);
    assert_int_equal(world.look_at(world.shell, &section, "0.jpg", &size), SIGHT_THERE);
    assert_int_equal(size, sizeof text);
    assert_int_equal(world.look_at(world.shell, &section, "1.jpg", &size), SIGHT_GONE);
    harness_remove(&folder);
}

static void test_fingerprint_pipe__reads_lines_whole(void **state)
{
    (void)state;
    static dispatch core;
    static const char line[] = "images 0123456789abcdef0123456789abcdef\n";
    shell around = {.core = &core};
    int ends[2];
    core = (dispatch){.outside = still_world(), .now_ns = 1};
    core.maker.asked[PRINT_IMAGES] = true;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    around.pipe.pid = 7;
    around.pipe.fd = ends[0];
    assert_int_equal(write(ends[1], line, strlen(line)), strlen(line));
    troubled = true;
    for (int i = 0; i < 100 && !core.fingerprints.of[PRINT_IMAGES][0]; i++)
        fingerprint_pipe_read(&around);
    troubled = false;
    assert_string_equal(core.fingerprints.of[PRINT_IMAGES], "0123456789abcdef0123456789abcdef");
    assert_int_equal(around.pipe.pid, 7); /* an interruption is not its end */
    close(ends[1]);
    close(ends[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ship_file__is_whole_after_interruptions),
        cmocka_unit_test(test_look_at__an_interruption_is_no_missing_file),
        cmocka_unit_test(test_fingerprint_pipe__reads_lines_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
