/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of cache_file.h: the index is kept beside the data or, if that is not possible, in a
 * folder below the temporary one, which is used only if it belongs to the user and no one else may
 * write to it. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "prepd/dataset/cache_file.h"
#include "tests/unit/prepd/conf_defaults.h"

typedef struct place {
    char *root;
    char folder[PATH_MAX]; /* the folder that must be found */
    conf options;
} place;

static int setup_folder(void **state)
{
    static place spot;
    spot.root = harness_temp();
    spot.options = conf_defaults();
    spot.options.data_path = "/proc/no/data/here";
    snprintf(spot.folder, sizeof spot.folder, "%s/tessera-%d", spot.root, (int)geteuid());
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    setenv("TMPDIR", spot.root, 1);
    *state = &spot;
    return 0;
}

static int teardown_folder(void **state)
{
    place *spot = *state;
    unsetenv("TMPDIR");
    conf_done(&spot->options);
    harness_remove(&spot->root);
    return 0;
}

static void test_cache_folder__is_made_for_the_user_alone(void **state)
{
    const place *spot = *state;
    char found[PATH_MAX];
    struct stat info;
    for (int again = 0; again < 2; again++) {
        assert_ok(cache_folder(&spot->options, found));
        assert_string_equal(found, spot->folder);
        assert_int_equal(stat(found, &info), 0);
        assert_int_equal(info.st_mode & 0777, 0700);
    }
}

static void test_cache_folder__lies_beside_what_data_path_names(void **state)
{
    const place *spot = *state;
    char found[PATH_MAX], file[PATH_MAX], path[PATH_MAX + 32], beside[PATH_MAX];
    snprintf(file, sizeof file, "%s/data.jsonl", spot->root);
    snprintf(beside, sizeof beside, "%s/.tessera", spot->root);
    FILE *made = fopen(file, "w");
    assert_non_null(made);
    assert_int_equal(fclose(made), 0);
    static const char *const names[] = {"", "/data.jsonl", "/{00000..00010}.tar",
                                        "/a{b,c}/{0..9}.tar"};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        snprintf(path, sizeof path, "%s%s", spot->root, names[k]);
        const conf options = {.data_path = path, .prepd_cache_dir = (char[]){""}};
        assert_ok(cache_folder(&options, found));
        assert_string_equal(found, beside);
    }
}

static void test_cache_folder__a_link_is_refused(void **state)
{
    const place *spot = *state;
    char found[PATH_MAX], own[PATH_MAX + 8];
    snprintf(own, sizeof own, "%s/own", spot->root);
    assert_int_equal(mkdir(own, 0700), 0);
    assert_int_equal(symlink(own, spot->folder), 0);
    assert_fails(ST_CANT_CREATE, cache_folder(&spot->options, found), "is a symbolic link");
}

static void test_cache_folder__writable_by_others_is_refused(void **state)
{
    const place *spot = *state;
    char found[PATH_MAX];
    assert_int_equal(mkdir(spot->folder, 0700), 0);
    assert_int_equal(chmod(spot->folder, 0777), 0);
    assert_fails(ST_CANT_CREATE, cache_folder(&spot->options, found),
                 "can be written by other users");
    assert_int_equal(chmod(spot->folder, 0755), 0);
    assert_ok(cache_folder(&spot->options, found));
    if (chown(spot->folder, 65534, 65534) == 0) /* which only root can do */
        assert_fails(ST_CANT_CREATE, cache_folder(&spot->options, found),
                     "belongs to another user");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_cache_folder__is_made_for_the_user_alone, setup_folder,
                                        teardown_folder),
        cmocka_unit_test_setup_teardown(test_cache_folder__lies_beside_what_data_path_names,
                                        setup_folder, teardown_folder),
        cmocka_unit_test_setup_teardown(test_cache_folder__a_link_is_refused, setup_folder,
                                        teardown_folder),
        cmocka_unit_test_setup_teardown(test_cache_folder__writable_by_others_is_refused,
                                        setup_folder, teardown_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
