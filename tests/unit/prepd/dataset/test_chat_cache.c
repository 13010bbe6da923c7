/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of chat_cache.c, which keeps the places and images of records for the next start: the
 * samples are the same with it, after any damage to it, and after a file or a folder of frames has
 * changed. */
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

enum {
    PATH = 1024,
    RECORDS = 300,
    FILLER = 30 << 10, /* bytes of a record: only large files get a cache */
    DAMAGES = 40,
    FRAMES_AT = 10, /* this record shows a folder of frames */
    BROKEN_AT = 20, /* this one is not JSON */
    BARE_AT = 30,   /* this one shows fewer pictures in its texts than it lists */
};

static void put_record(FILE *file, int index, const char *word, const char *frames)
{
    if (index == BROKEN_AT) {
        fputs("{\"image\": }\n", file);
        return;
    }
    if (index == FRAMES_AT)
        fprintf(file, "{\"video\": \"%s\", \"fps\": 2, ", frames);
    else
        fprintf(file, "{\"images\": [\"p/%d.jpg\", \"p/%d.jpg\"], ", index / 3, index / 3 + 1);
    fprintf(file,
            "\"filler\": \"%*s\", \"messages\": [{\"role\": \"user\", \"content\": \"%s%s %d?\"}, "
            "{\"role\": \"assistant\", \"content\": \"a%d\"}]}\n",
            FILLER, "",
            index == FRAMES_AT ? "<video>"
            : index == BARE_AT ? "<image>"
                               : "<image><image>",
            word, index, index);
}

static void put_records(const char *root, const char *word, const char *frames)
{
    char path[PATH];
    snprintf(path, PATH, "%s/talks.jsonl", root);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < RECORDS; i++)
        put_record(file, i, word, frames);
    assert_int_equal(fclose(file), 0);
}

static void put_frame(const char *root, const char *folder, int number)
{
    char path[PATH];
    snprintf(path, PATH, "%s/%s", root, folder);
    (void)!mkdir(path, 0777);
    snprintf(path, PATH, "%s/%s/%d.jpg", root, folder, number);
    const int fd = open(path, O_CREAT | O_WRONLY, 0666);
    assert_true(fd >= 0);
    close(fd);
}

static char *make_set(void)
{
    char *root = harness_temp();
    put_records(root, "what", "clip");
    put_frame(root, "clip", 1);
    put_frame(root, "clip", 2);
    return root;
}

/* Writes all that the data set gives as one text; the caller frees it. */
static char *show_chats(const char *root)
{
    char path[PATH], identity[HASH_TEXT], *text = NULL;
    conf options = conf_defaults();
    dataset *set;
    arena memory;
    size_t size;
    snprintf(path, PATH, "%s/talks.jsonl", root);
    options.data_format = DATA_VIDEO;
    options.data_path = path;
    arena_init(&memory, 0);
    assert_ok(dataset_open(&options, &set));
    FILE *file = open_memstream(&text, &size);
    hash_print(set->adapter->identity(set), identity);
    fprintf(file, "%s, %lld images\n", identity, (long long)set->adapter->images(set));
    for (int64_t i = 0; i < set->adapter->samples(set); i++) {
        sample smp;
        assert_ok(set->adapter->sample(set, i, &memory, &smp));
        fprintf(file, "%s|%s|%s", smp.name, smp.cause ? smp.cause : "",
                smp.n_turns ? smp.turns[0].parts[smp.turns[0].n_parts - 1].text : "");
        for (int32_t k = 0; k < smp.n_images; k++) {
            image_place place;
            dataset_image_place(set, smp.images[k], &place);
            fprintf(file, "|%s %d %g %s", place.path, place.n_frames, place.fps,
                    place.n_frames ? set->adapter->frame(set, smp.images[k], 0) : "");
        }
        fprintf(file, "\n");
    }
    fclose(file);
    dataset_close(&set);
    arena_done(&memory);
    return text;
}

/* Finds the cache file. False if there is none. */
static bool cache_of(const char *root, char out[PATH])
{
    char folder[PATH];
    bool found = false;
    snprintf(folder, PATH, "%s/.tessera", root);
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        if (strncmp(entry->d_name, "chats-", 6) == 0) {
            snprintf(out, PATH, "%.700s/%.300s", folder, entry->d_name);
            found = true;
        }
    if (dir)
        closedir(dir);
    return found;
}

static void test_cache__is_read_instead_of_the_files(void **state)
{
    (void)state;
    char *root = make_set(), path[PATH];
    char *first = show_chats(root), *second = show_chats(root);
    assert_string_equal(first, second);
    assert_non_null(strstr(first, "talks.jsonl:1||what 0?|p/0.jpg 0 0 |p/1.jpg 0 0 \n"));
    assert_non_null(strstr(first, "talks.jsonl:11||what 10?|clip 2 2 1.jpg\n"));
    assert_non_null(strstr(first, "talks.jsonl:21|talks.jsonl:21: not JSON"));
    assert_non_null(strstr(first, "talks.jsonl:31|talks.jsonl:31: "));
    assert_true(cache_of(root, path));

    /* Other contents with the old size and time are not noticed at opening, which shows that the
     * file was not read. */
    struct stat was;
    snprintf(path, PATH, "%s/talks.jsonl", root);
    assert_int_equal(stat(path, &was), 0);
    put_records(root, "whom", "clip");
    const struct timespec times[2] = {was.st_atim, was.st_mtim};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    char *unread = show_chats(root);
    assert_memory_equal(unread, first, HASH_TEXT - 1); /* the identity */

    /* With a new time they are noticed, and the cache is made for the new contents. */
    put_records(root, "whom", "clip");
    char *changed = show_chats(root), *again = show_chats(root);
    assert_non_null(strstr(changed, "||whom 0?|p/0.jpg"));
    assert_string_equal(changed, again);
    free(first);
    free(second);
    free(unread);
    free(changed);
    free(again);
    harness_remove(&root);
}

static void test_cache__damage_costs_only_time(void **state)
{
    (void)state;
    char *root = make_set(), path[PATH] = "";
    char *first = show_chats(root);
    struct stat info;
    rng_key key = rng_key_make(harness_seed(), "damage");
    for (uint64_t round = 0; round < DAMAGES; round++) {
        assert_true(cache_of(root, path));
        assert_int_equal(stat(path, &info), 0);
        FILE *file = fopen(path, "r+");
        assert_non_null(file);
        if (round % 10 == 9) { /* cut short */
            assert_int_equal(
                ftruncate(fileno(file), (off_t)rng_below(key, round, (uint64_t)info.st_size)), 0);
        } else { /* some bytes are overwritten */
            fseek(file, (long)rng_below(key, 3 * round, (uint64_t)info.st_size), SEEK_SET);
            for (uint64_t i = 0; i <= round % 9; i++)
                fputc((int)rng_below(key, 3 * round + i + 1000, 256), file);
        }
        fclose(file);
        char *again = show_chats(root);
        assert_string_equal(again, first);
        free(again);
    }
    free(first);
    harness_remove(&root);
}

static void test_cache__folders_of_frames_are_listed_at_every_start(void **state)
{
    (void)state;
    char *root = make_set(), path[PATH];
    char *first = show_chats(root);
    put_frame(root, "clip", 3);
    char *more = show_chats(root);
    assert_non_null(strstr(more, "|clip 3 2 1.jpg\n"));
    assert_int_not_equal(strncmp(more, first, HASH_TEXT - 1), 0);
    free(first);
    free(more);
    harness_remove(&root);

    /* A record that is refused because its folder is empty is not kept as refused, because someone
     * may fill the folder. */
    root = harness_temp();
    snprintf(path, PATH, "%s/empty", root);
    assert_int_equal(mkdir(path, 0777), 0);
    put_records(root, "what", "empty");
    char *refused = show_chats(root);
    assert_non_null(strstr(refused, "holds 0 pictures"));
    put_frame(root, "empty", 1);
    char *mended = show_chats(root);
    assert_non_null(strstr(mended, "|empty 1 2 1.jpg\n"));
    free(refused);
    free(mended);
    harness_remove(&root);
}

int main(void)
{
    log_init("test", LOG_WARN, false); /* each damage is logged, which would be much text */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cache__is_read_instead_of_the_files),
        cmocka_unit_test(test_cache__damage_costs_only_time),
        cmocka_unit_test(test_cache__folders_of_frames_are_listed_at_every_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
