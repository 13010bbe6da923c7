/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of dataset.h: whatever links lie in a folder, no file outside it is opened. With openat2,
 * links that stay inside are followed; without it, no link is. */
#include "tests/harness.h"

#include <errno.h>
#include <fcntl.h>
#include <seccomp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "prepd/dataset/dataset.h"

typedef int (*opener)(const char *folder, const char *path, int flags);

static char where[] = "/tmp/beneathXXXXXX";

static void put_text_file(const char *name, const char *text)
{
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int make_tree(void **state)
{
    (void)state;
    char absolute[64];
    assert_non_null(mkdtemp(where));
    assert_int_equal(chdir(where), 0);
    assert_int_equal(mkdir("data", 0700) | mkdir("data/sub", 0700) | mkdir("other", 0700), 0);
    put_text_file("secret", "secret");
    put_text_file("other/b", "secret");
    put_text_file("data/a", "inside");
    put_text_file("data/sub/b", "inside");
    snprintf(absolute, sizeof absolute, "%s/data/a", where);
    assert_int_equal(symlink("sub/b", "data/in") | symlink("../a", "data/sub/up") |
                         symlink("sub", "data/folder") | symlink("../secret", "data/out") |
                         symlink(absolute, "data/absolute") | symlink("/etc", "data/etc") |
                         symlink("../other", "data/beside") | symlink("nowhere", "data/dangling") |
                         symlink("/proc/self/root/etc/passwd", "data/magic") |
                         symlink("in", "data/twice") | symlink("round", "data/round") |
                         symlink("data", "link"),
                     0);
    return 0;
}

static int remove_tree(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", where);
    return chdir("/") != 0 || system(command) != 0;
}

/* Returns 0 if the file inside is opened, errno if none is, and -1 if another file is. */
static int try_open(opener how, const char *folder, const char *path)
{
    char text[16] = "";
    const int fd = how(folder, path, O_RDONLY);
    if (fd < 0)
        return errno;
    const ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    return got == 6 && strcmp(text, "inside") == 0 ? 0 : -1;
}

static const struct {
    const char *path;
    int follows, walks; /* the errno with openat2, and by walking without it */
} cases[] = {
    {"a", 0, 0},
    {"sub/b", 0, 0},
    {"sub//b", 0, 0},
    {"./a", 0, 0},
    {"absent", ENOENT, ENOENT},
    {"absent/a", ENOENT, ENOENT},
    {"a/b", ENOTDIR, ENOTDIR},
    {"in", 0, EXDEV},
    {"twice", 0, EXDEV},
    {"sub/up", 0, EXDEV},
    {"folder/b", 0, EXDEV},
    {"dangling", ENOENT, EXDEV},
    {"round", ELOOP, EXDEV},
    {"out", EXDEV, EXDEV},
    {"absolute", EXDEV, EXDEV},
    {"etc/passwd", EXDEV, EXDEV},
    {"beside/b", EXDEV, EXDEV},
    {"magic", EXDEV, EXDEV},
    {"../secret", EXDEV, EXDEV},
    {"sub/../../secret", EXDEV, EXDEV},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static void check_all(opener how, bool follows)
{
    for (size_t k = 0; k < N_CASES; k++) {
        const int want = follows ? cases[k].follows : cases[k].walks;
        for (int named_by_link = 0; named_by_link < 2; named_by_link++) {
            const int got = try_open(how, named_by_link ? "link" : "data", cases[k].path);
            if (got != want)
                fail_msg("%s: %d (%s), not %d", cases[k].path, got, strerror(got), want);
        }
    }
    assert_int_equal(try_open(how, "absent", "a"), ENOENT);
}

/* O_PATH, with which ship_check looks at a place without reading it, must keep to the same rule. */
static void check_place_only(opener how)
{
    const int fd = how("data", "a", O_PATH);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(how("data", "out", O_PATH), -1);
    assert_int_equal(errno, EXDEV);
}

static void test_beneath__follows_what_stays_inside(void **state)
{
    (void)state;
    check_all(beneath_open, true);
    check_place_only(beneath_open);
}

static void test_beneath_walk__follows_no_link(void **state)
{
    (void)state;
    check_all(beneath_walk, false);
    check_place_only(beneath_walk);
}

/* If the kernel has no openat2 (ENOSYS) or a filter refuses it (EPERM), the path is walked
 * instead. */
static void test_beneath__walks_without_openat2(void **state)
{
    (void)state;
    static const int errors[] = {ENOSYS, EPERM};
    for (size_t k = 0; k < sizeof errors / sizeof *errors; k++) {
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
            const int bad =
                seccomp_rule_add(filter, SCMP_ACT_ERRNO((uint32_t)errors[k]), SCMP_SYS(openat2), 0);
            if (bad || seccomp_load(filter))
                _exit(2);
            int wrong = 0;
            for (size_t i = 0; i < N_CASES; i++)
                wrong += try_open(beneath_open, "data", cases[i].path) != cases[i].walks;
            _exit(wrong ? 1 : 0);
        }
        int ended;
        assert_int_equal(waitpid(child, &ended, 0), child);
        assert_true(WIFEXITED(ended));
        assert_int_equal(WEXITSTATUS(ended), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_beneath__follows_what_stays_inside),
        cmocka_unit_test(test_beneath_walk__follows_no_link),
        cmocka_unit_test(test_beneath__walks_without_openat2),
    };
    return cmocka_run_group_tests(tests, make_tree, remove_tree);
}
