/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of vqa_cache.c, which keeps what was read of a VQAv2 folder for the next start: the samples
 * are the same with it, after any damage to it, and after a file has changed. */
#include "tests/harness.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/program/log.h"
#include "common/base/rng.h"
#include "prepd/dataset/dataset.h"
#include "tests/unit/prepd/conf_defaults.h"

enum { PATH = 1024, QUESTIONS = 300, FILLER = 9 << 20 /* bytes: only large files get a cache */ };

static void path_of(char out[PATH], const char *root, const char *name)
{
    snprintf(out, PATH, "%s/%s", root, name);
}

static void put_questions(const char *root, const char *word)
{
    char path[PATH];
    path_of(path, root, "v2_OpenEnded_mscoco_train2014_questions.json");
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "{\"questions\": [");
    for (int i = 0; i < QUESTIONS; i++) /* the last question has no text */
        fprintf(file, "%s{\"image_id\": %d, \"question\": \"%s %d?\", \"question_id\": %d}",
                i ? ", " : "", i / 3, i + 1 < QUESTIONS ? word : "", i, i * 10);
    fprintf(file, "], \"filler\": \"");
    for (int i = 0; i < FILLER; i++)
        fputc(' ', file);
    fprintf(file, "\"}");
    assert_int_equal(fclose(file), 0);
}

static char *make_set(void)
{
    char *root = harness_temp(), path[PATH];
    put_questions(root, "what");
    path_of(path, root, "v2_mscoco_train2014_annotations.json");
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "{\"annotations\": [");
    for (int i = 0; i < QUESTIONS; i++) /* the fourth annotation belongs to no question */
        fprintf(file,
                "%s{\"multiple_choice_answer\": \"a%d\", \"image_id\": %d, \"question_id\": %d}",
                i ? ", " : "", i, i / 3, i == 3 ? -5 : i * 10);
    fprintf(file, "]}");
    assert_int_equal(fclose(file), 0);
    path_of(path, root, "images");
    assert_int_equal(mkdir(path, 0777), 0);
    path_of(path, root, "images/train2014");
    assert_int_equal(mkdir(path, 0777), 0);
    path_of(path, root, "images/train2014/COCO_train2014_000000000000.jpg");
    assert_int_equal(close(open(path, O_CREAT | O_WRONLY, 0666)), 0);
    return root;
}

/* Writes all that the data set gives as one text; the caller frees it. */
static char *shown_in(const char *root, const char *cache)
{
    conf options = conf_defaults();
    dataset *set;
    arena memory;
    char *text = NULL;
    size_t size;
    options.data_path = root;
    options.prepd_cache_dir = cache;
    arena_init(&memory, 0);
    assert_ok(dataset_open(&options, &set));
    FILE *file = open_memstream(&text, &size);
    for (int64_t i = 0; i < set->adapter->samples(set); i++) {
        sample smp;
        assert_ok(set->adapter->sample(set, i, &memory, &smp));
        fprintf(file, "%s|%s", smp.name, smp.cause ? smp.cause : "");
        for (int32_t place = 0; place < smp.n_turns; place++)
            for (int32_t at = 0; at < smp.turns[place].n_parts; at++)
                fprintf(file, "|%s",
                        smp.turns[place].parts[at].text
                            ? smp.turns[place].parts[at].text
                            : set->adapter->image_path(set, smp.images[0]));
        fprintf(file, "\n");
    }
    fclose(file);
    dataset_close(&set);
    arena_done(&memory);
    return text;
}

static char *show_questions(const char *root)
{
    return shown_in(root, "");
}

static void cache_of(const char *root, char out[PATH])
{
    char folder[PATH];
    path_of(folder, root, ".tessera");
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(dir));)
        if (strncmp(entry->d_name, "vqav2-", 6) == 0) {
            snprintf(out, PATH, "%.700s/%.300s", folder, entry->d_name);
            count++;
        }
    closedir(dir);
    assert_int_equal(count, 1);
}

static void test_cache__is_read_instead_of_the_files(void **state)
{
    (void)state;
    char *root = make_set(), path[PATH];
    char *first = show_questions(root), *second = show_questions(root);
    assert_string_equal(first, second);
    assert_non_null(strstr(first, "question 0||images/train2014/COCO_train2014_000000000000.jpg|"
                                  "what 0?|a0\n"));
    assert_non_null(strstr(first, "question 30|question_id 30 has no annotation"));

    /* Other contents with the old size and time are not noticed, which shows that the files were
     * not read. */
    struct stat was;
    path_of(path, root, "v2_OpenEnded_mscoco_train2014_questions.json");
    assert_int_equal(stat(path, &was), 0);
    put_questions(root, "whom");
    const struct timespec times[2] = {was.st_atim, was.st_mtim};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    char *unread = show_questions(root);
    assert_string_equal(unread, first);

    /* With a new time they are noticed, and the cache is made for the new contents. */
    put_questions(root, "whom");
    char *changed = show_questions(root);
    assert_non_null(strstr(changed, "|whom 0?|a0\n"));
    cache_of(root, path);
    free(first);
    free(second);
    free(unread);
    free(changed);
    harness_remove(&root);
}

static void test_cache__damage_costs_only_time(void **state)
{
    (void)state;
    char *root = make_set(), path[PATH];
    char *first = show_questions(root);
    struct stat info;
    rng_key key = rng_key_make(harness_seed(), "damage");
    for (uint64_t round = 0; round < 40; round++) {
        cache_of(root, path);
        assert_int_equal(stat(path, &info), 0);
        FILE *file = fopen(path, "r+");
        assert_non_null(file);
        if (round % 10 == 9) { /* cut short */
            assert_int_equal(
                ftruncate(fileno(file), (off_t)rng_below(key, round, (uint64_t)info.st_size)), 0);
        } else { /* some bytes are overwritten, so that offsets become small or huge */
            fseek(file, (long)rng_below(key, 3 * round, (uint64_t)info.st_size), SEEK_SET);
            for (uint64_t i = 0; i <= round % 9; i++)
                fputc((int)rng_below(key, 3 * round + i + 1000, 256), file);
        }
        fclose(file);
        char *again = show_questions(root);
        assert_string_equal(again, first);
        free(again);
    }
    free(first);
    harness_remove(&root);
}

static void test_cache__small_sets_get_none(void **state)
{
    (void)state;
    char *root = make_set(), path[PATH];
    path_of(path, root, "v2_OpenEnded_mscoco_train2014_questions.json");
    FILE *file = fopen(path, "w");
    fprintf(file, "{\"questions\": [{\"image_id\": 0, \"question\": \"x?\", \"question_id\": 0}]}");
    fclose(file);
    free(show_questions(root));
    path_of(path, root, ".tessera");
    assert_int_not_equal(access(path, F_OK), 0);
    harness_remove(&root);
}

/* With prepd.cache_dir, the sources of a mixture have their caches in one folder. */
static void test_cache__two_sets_share_a_folder(void **state)
{
    (void)state;
    char *roots[2] = {make_set(), make_set()}, *cache = harness_temp(), path[PATH];
    struct stat was;
    for (int k = 0; k < 2; k++)
        free(shown_in(roots[k], cache));
    /* other contents with the old size and time: the files must not be read again */
    for (int k = 0; k < 2; k++) {
        path_of(path, roots[k], "v2_OpenEnded_mscoco_train2014_questions.json");
        assert_int_equal(stat(path, &was), 0);
        put_questions(roots[k], "whom");
        const struct timespec times[2] = {was.st_atim, was.st_mtim};
        assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
        char *text = shown_in(roots[k], cache);
        assert_non_null(strstr(text, "|what 0?|a0\n"));
        free(text);
    }
    for (int k = 0; k < 2; k++)
        harness_remove(&roots[k]);
    harness_remove(&cache);
}

int main(void)
{
    log_init("test", LOG_WARN, false); /* each damage is logged, which would be much text */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cache__is_read_instead_of_the_files),
        cmocka_unit_test(test_cache__two_sets_share_a_folder),
        cmocka_unit_test(test_cache__damage_costs_only_time),
        cmocka_unit_test(test_cache__small_sets_get_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
