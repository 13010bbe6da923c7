/* SPDX-License-Identifier: Apache-2.0 */
/* test_prune.c: which checkpoints are deleted: by the policy of checkpoint.keep_latest_k after a
 * save, and one at a time when the disk has no room for the next one. */
#include "tests/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/base/file.h"
#include "trainer/checkpoint/save/folder.h"
#include "trainer/checkpoint/hf/hf_write.h"
#include "trainer/checkpoint/state/progress.h"

enum { STEPS = 5 };

static char base[] = "/tmp/test_prune_XXXXXX";

/* Makes steps 1 to STEPS, each with its held-out loss (NAN: not evaluated). */
static void make_steps(const double loss[STEPS])
{
    for (int64_t i = 0; i < STEPS; i++) {
        char path[STATUS_PATH_MAX], training[STATUS_PATH_MAX];
        progress bar = {.step = i + 1, .rows = i + 1, .eval_loss = loss[i]};
        assert_ok(folder_step_path(path, base, i + 1, NULL));
        assert_ok(hf_path(training, path, FOLDER_TRAINING));
        assert_ok(file_make_folders(training));
        assert_ok(progress_write(&bar, training));
    }
}

static void expect_steps(int count, const int64_t *wanted)
{
    int64_t *step, found;
    assert_ok(folder_steps(base, &step, &found));
    assert_int_equal(found, count);
    for (int i = 0; i < count; i++)
        assert_int_equal(step[i], wanted[i]);
    free(step);
}

#define EXPECT(...)                                                                                \
    expect_steps((int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),                        \
                 (int64_t[]){__VA_ARGS__})

static void test_prune_by_policy__keeps_the_newest_and_the_best(void **state)
{
    (void)state;
    make_steps((double[]){3, 1, 2, NAN, 4});
    assert_ok(prune_by_policy(base, 0));
    EXPECT(1, 2, 3, 4, 5);
    assert_ok(prune_by_policy(base, 2));
    EXPECT(2, 4, 5);
    assert_ok(prune_by_policy(base, 1));
    EXPECT(2, 5);
}

static void test_prune_one__the_best_goes_last_and_the_complete_one_never(void **state)
{
    (void)state;
    bool gone = true;
    make_steps((double[]){3, 1, 2, NAN, 4});
    assert_ok(prune_one(base, 4, 0, &gone)); /* the four newest are to be kept */
    assert_false(gone);
    assert_ok(prune_one(base, 0, 3, &gone)); /* no step is known to be complete */
    assert_false(gone);
    EXPECT(1, 2, 3, 4, 5);
    assert_ok(prune_one(base, 4, 3, &gone));
    assert_true(gone);
    EXPECT(2, 3, 4, 5);
    assert_ok(prune_one(base, 4, 3, &gone));
    EXPECT(2, 4, 5);
    assert_ok(prune_one(base, 4, 3, &gone));
    EXPECT(2, 4);
    assert_ok(prune_one(base, 4, 3, &gone));
    assert_true(gone);
    EXPECT(4);
    assert_ok(prune_one(base, 4, 3, &gone));
    assert_false(gone);
    EXPECT(4);
}

static void test_prune_for_room__keeps_all_where_there_is_room(void **state)
{
    (void)state;
    make_steps((double[]){3, 1, 2, NAN, 4});
    assert_ok(prune_for_room(base, 5, 1)); /* a checkpoint is a few bytes */
    EXPECT(1, 2, 3, 4, 5);
}

/* Adds a sparse file of this size, which takes no space on the disk. */
static void put_hollow(int64_t step, int64_t bytes)
{
    char path[STATUS_PATH_MAX], file[STATUS_PATH_MAX];
    assert_ok(folder_step_path(path, base, step, NULL));
    assert_ok(hf_path(file, path, "hollow"));
    FILE *out = fopen(file, "we");
    assert_non_null(out);
    assert_int_equal(ftruncate(fileno(out), bytes), 0);
    assert_int_equal(fclose(out), 0);
}

static void test_prune_for_room__keeps_what_would_not_help(void **state)
{
    (void)state;
    const int64_t more = INT64_C(8) << 30;
    struct statvfs disk;
    bool gone = true;
    make_steps((double[]){3, 1, 2, NAN, 4});
    assert_int_equal(statvfs(base, &disk), 0);
    put_hollow(5, (int64_t)(disk.f_bavail * disk.f_frsize) + more);
    assert_ok(prune_for_room(base, 5, 1));
    EXPECT(1, 2, 3, 4, 5);
    assert_ok(prune_one(base, 5, 1, &gone));
    assert_false(gone);
    put_hollow(1, 2 * more); /* enough by its apparent size; the others are not */
    assert_ok(prune_for_room(base, 5, 1));
    EXPECT(2, 3, 4, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prune_by_policy__keeps_the_newest_and_the_best),
        cmocka_unit_test(test_prune_one__the_best_goes_last_and_the_complete_one_never),
        cmocka_unit_test(test_prune_for_room__keeps_all_where_there_is_room),
        cmocka_unit_test(test_prune_for_room__keeps_what_would_not_help),
    };
    if (!mkdtemp(base))
        return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return folder_remove(base) == ST_OK ? failed : 1;
}
