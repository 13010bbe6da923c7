/* SPDX-License-Identifier: Apache-2.0 */
/* test_folder.c: folders of checkpoints. A step that is saved a second time replaces the first at
 * once, a manifest with impossible sizes is refused, and a file is written even where folders
 * cannot be synced. */
#include "common/base/file.h"
#include "tests/folders_refuse.h"
#include "tests/harness.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trainer/checkpoint/save/folder.h"
#include "trainer/checkpoint/hf/hf_write.h"

enum { STEP = 7, SAVES = 300 };

static char base[] = "/tmp/test_folder_XXXXXX";

static void write_step(int number)
{
    char path[STATUS_PATH_MAX], file[STATUS_PATH_MAX + 16];
    assert_ok(folder_step_path(path, base, STEP, "writing"));
    assert_ok(file_make_folders(path));
    snprintf(file, sizeof file, "%s/number", path);
    FILE *out = fopen(file, "we");
    assert_non_null(out);
    fprintf(out, "%d", number);
    fclose(out);
}

static int read_step(void)
{
    char path[STATUS_PATH_MAX], file[STATUS_PATH_MAX + 16];
    int number = -1;
    assert_ok(folder_step_path(path, base, STEP, NULL));
    snprintf(file, sizeof file, "%s/number", path);
    FILE *from = fopen(file, "re");
    if (from && fscanf(from, "%d", &number) != 1)
        number = -1;
    if (from)
        fclose(from);
    return number;
}

static atomic_bool stop;
static atomic_int missing, looked;

/* Watches the folder of the step without pause. A run can be killed at any moment, so a complete
 * step must always be there. */
static void *watch_folder(void *path)
{
    struct stat about;
    while (!atomic_load(&stop)) {
        if (stat(path, &about) != 0)
            atomic_fetch_add(&missing, 1);
        atomic_fetch_add(&looked, 1);
    }
    return NULL;
}

static void test_folder_commit__a_step_saved_again_is_never_missing(void **state)
{
    (void)state;
    char path[STATUS_PATH_MAX], leftover[STATUS_PATH_MAX];
    pthread_t watcher;
    struct stat about;
    assert_non_null(mkdtemp(base));
    assert_ok(folder_step_path(path, base, STEP, NULL));
    write_step(0);
    assert_ok(folder_commit(base, STEP));
    assert_int_equal(pthread_create(&watcher, NULL, watch_folder, path), 0);
    for (int i = 1; i <= SAVES || atomic_load(&looked) < 10 * SAVES; i++) {
        write_step(i);
        assert_ok(folder_commit(base, STEP));
        assert_int_equal(read_step(), i);
    }
    atomic_store(&stop, true);
    pthread_join(watcher, NULL);
    assert_int_equal(atomic_load(&missing), 0);
    assert_ok(folder_step_path(leftover, base, STEP, "trash"));
    assert_int_equal(stat(leftover, &about), -1);
    assert_ok(folder_step_path(leftover, base, STEP, "writing"));
    assert_int_equal(stat(leftover, &about), -1);
    assert_ok(folder_remove(base));
}

static void write_words(const char *folder, const char *name, const char *text)
{
    char path[STATUS_PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

/* Both files have the same size in the manifest: one that no file has, a negative one, or one that
 * is not a number. Every rank refuses it, also one that has no file to read. */
static void test_folder_check__impossible_sizes_are_refused(void **state)
{
    (void)state;
    static const char *const sizes[] = {"9000000000000000000", "-1", "\"much\""};
    char text[512], training[STATUS_PATH_MAX], *folder = harness_temp();
    snprintf(training, sizeof training, "%s/" FOLDER_TRAINING, folder);
    assert_ok(file_make_folders(training));
    write_words(folder, "a", "words");
    write_words(folder, "b", "more");
    assert_ok(folder_seal(folder, NULL, 0));
    for (int ranks = 1; ranks <= 3; ranks++)
        for (int rank = 0; rank < ranks; rank++)
            assert_ok(folder_check(folder, rank, ranks));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        snprintf(text, sizeof text,
                 "{\"version\":1,\"files\":[{\"name\":\"a\",\"bytes\":%s,\"digest\":\"0\"},"
                 "{\"name\":\"b\",\"bytes\":%s,\"digest\":\"0\"}],\"seal\":\"0\"}",
                 sizes[i], sizes[i]);
        write_words(training, "manifest.json", text);
        for (int rank = 0; rank < 3; rank++)
            assert_fails(ST_BAD_INPUT, folder_check(folder, rank, 3),
                         rank < 2 && i < 2 ? "bytes" : "manifest.json");
    }
    harness_remove(&folder);
}

static void test_hf_write_text__works_where_folders_cannot_be_synced(void **state)
{
    (void)state;
    char *folder = harness_temp(), path[STATUS_PATH_MAX];
    folders_refuse = true;
    status st = hf_write_text(folder, "config.json", "{}", 2);
    folders_refuse = false;
    assert_ok(st);
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_int_equal(access(path, R_OK), 0);
    harness_remove(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_folder_commit__a_step_saved_again_is_never_missing),
        cmocka_unit_test(test_folder_check__impossible_sizes_are_refused),
        cmocka_unit_test(test_hf_write_text__works_where_folders_cannot_be_synced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
