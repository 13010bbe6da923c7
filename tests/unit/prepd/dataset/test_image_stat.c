/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of dataset_image_stat: a picture that is there, one that is not, and one of which nobody
 * can tell, since its disk is in trouble. */
#include "tests/harness.h"

#include <errno.h>
#include <seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "prepd/dataset/dataset.h"

static char root[] = "/tmp/imagestatXXXXXX";

static const char *own_root(const dataset *set)
{
    (void)set;
    return root;
}

static const char *own_path(const dataset *set, int64_t index)
{
    (void)set;
    return index ? "absent.jpg" : "there.jpg";
}

static const dataset_vtable vtable = {.root = own_root, .image_path = own_path};
static const dataset data = {.adapter = &vtable};

static int put_file(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(root));
    assert_int_equal(chdir(root), 0);
    FILE *file = fopen("there.jpg", "w");
    assert_non_null(file);
    fputs("picture", file);
    return fclose(file);
}

static int remove_file(void **state)
{
    (void)state;
    return unlink("there.jpg") != 0 || chdir("/") != 0 || rmdir(root) != 0;
}

static void test_image_stat__what_is_there_has_a_size_and_a_time(void **state)
{
    (void)state;
    int64_t bytes, mtime_ns;
    dataset_image_stat(&data, 0, &bytes, &mtime_ns);
    assert_int_equal(bytes, 7);
    assert_true(mtime_ns > 0);
    dataset_image_stat(&data, 1, &bytes, &mtime_ns);
    assert_int_equal(bytes, 0);
    assert_int_equal(mtime_ns, 0);
}

/* Has the system refuse to look at files; 1: it could not be told to. */
static int break_disk(void)
{
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    const uint32_t fails = SCMP_ACT_ERRNO(EIO);
    return !filter || seccomp_rule_add(filter, fails, SCMP_SYS(newfstatat), 0) != 0 ||
           seccomp_rule_add(filter, fails, SCMP_SYS(statx), 0) != 0 || seccomp_load(filter) != 0;
}

static void test_image_stat__trouble_is_no_size(void **state)
{
    (void)state;
    int how;
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        int64_t bytes = 0, mtime_ns = 1;
        if (break_disk() != 0)
            _exit(1);
        dataset_image_stat(&data, 0, &bytes, &mtime_ns);
        _exit(bytes == -1 && mtime_ns == 0 ? 0 : 2);
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how));
    assert_int_equal(WEXITSTATUS(how), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_image_stat__what_is_there_has_a_size_and_a_time),
        cmocka_unit_test(test_image_stat__trouble_is_no_size),
    };
    return cmocka_run_group_tests(tests, put_file, remove_file);
}
