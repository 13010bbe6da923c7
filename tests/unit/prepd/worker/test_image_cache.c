/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of image_cache.h: a picture that was put into the cache is found unchanged or not at all,
 * whatever happens to the file and however many processes use it. */
#include "tests/harness.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "prepd/worker/media/image_cache.h"

enum { RING = 1 << 20, MOST = 60000 };

static uint64_t draw_number(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 20;
}

/* Makes the patches of picture number and returns their size. */
static size_t patches_of(uint64_t number, uint8_t out[MOST])
{
    uint64_t seed = number + 7;
    const size_t bytes = 1000 + draw_number(&seed) % (MOST - 1000);
    for (size_t i = 0; i < bytes; i++)
        out[i] = (uint8_t)draw_number(&seed);
    return bytes;
}

static hash128 key_of(uint64_t number)
{
    return hash_bytes(&number, sizeof number);
}

static void put_picture(image_cache *cache, uint64_t number)
{
    uint8_t patches[MOST];
    const size_t bytes = patches_of(number, patches);
    image_cache_put(cache, key_of(number), patches, bytes);
}

/* Whether picture number is in the cache; if it is, its patches must be right. */
static bool get_picture(image_cache *cache, uint64_t number)
{
    uint8_t want[MOST], got[MOST];
    const size_t bytes = patches_of(number, want);
    if (!image_cache_get(cache, key_of(number), got, bytes))
        return false;
    assert_memory_equal(got, want, bytes);
    return true;
}

static image_cache *open_cache(const char *folder, int64_t bytes)
{
    const conf options = {.cache_folder = folder, .cache_bytes = bytes};
    image_cache *cache;
    assert_ok(image_cache_open(&options, (hash128){{1}}, &cache));
    assert_non_null(cache);
    return cache;
}

static void test_cache__shared_and_kept(void **state)
{
    char *folder = harness_temp();
    uint8_t patches[MOST];
    (void)state;
    image_cache *one = open_cache(folder, RING), *two = open_cache(folder, RING);
    assert_false(get_picture(one, 1));
    put_picture(one, 1);
    put_picture(two, 2);
    assert_true(get_picture(one, 1) && get_picture(one, 2) && get_picture(two, 1) &&
                get_picture(two, 2));
    /* under this key they have another size */
    assert_false(image_cache_get(one, key_of(1), patches, 999));
    image_cache_close(&one);
    image_cache_close(&two);
    one = open_cache(folder, RING);
    assert_true(get_picture(one, 1) && get_picture(one, 2));
    /* another cache size makes a new file, and readers of the old one go on */
    two = open_cache(folder, 2 * RING);
    assert_false(get_picture(two, 1));
    assert_true(get_picture(one, 1));
    image_cache_close(&one);
    image_cache_close(&two);
    const conf off = {.cache_folder = "", .cache_bytes = RING};
    assert_ok(image_cache_open(&off, (hash128){{1}}, &one));
    assert_null(one);
    const conf bad = {.cache_folder = "/proc/nowhere", .cache_bytes = RING};
    assert_fails(ST_CANT_CREATE, image_cache_open(&bad, (hash128){{1}}, &one), "cache.folder");
    harness_remove(&folder);
}

static void test_cache__oldest_pictures_are_dropped(void **state)
{
    char *folder = harness_temp(), path[4096];
    struct stat info;
    int hits = 0;
    (void)state;
    image_cache *cache = open_cache(folder, RING);
    for (uint64_t number = 0; number < 400; number++) {
        put_picture(cache, number);
        assert_true(get_picture(cache, number)); /* the newest is always there */
    }
    for (uint64_t number = 0; number < 400; number++)
        hits += get_picture(cache, number);
    assert_true(hits > 4 && hits < 100); /* about as many as a mebibyte holds */
    snprintf(path, sizeof path, "%s/images.cache", folder);
    assert_int_equal(stat(path, &info), 0);
    assert_true(info.st_size < RING + (1 << 16));
    uint8_t *large = calloc(1, 2 * RING);
    image_cache_put(cache, key_of(9999), large, 2 * RING); /* too large to be kept */
    assert_false(image_cache_get(cache, key_of(9999), large, 2 * RING));
    free(large);
    image_cache_close(&cache);
    harness_remove(&folder);
}

static void test_cache__damaged_deleted_cut(void **state)
{
    char *folder = harness_temp(), path[4096];
    uint64_t seed = harness_seed();
    int hits = 0;
    (void)state;
    snprintf(path, sizeof path, "%s/images.cache", folder);
    for (int round = 0; round < 12; round++) {
        image_cache *cache = open_cache(folder, RING);
        for (uint64_t number = 0; number < 20; number++)
            put_picture(cache, number);
        const int fd = open(path, O_RDWR);
        assert_true(fd >= 0);
        for (int i = 0; i < 1 << round; i++) {
            const uint8_t noise[8] = {(uint8_t)draw_number(&seed),
                                      (uint8_t)draw_number(&seed),
                                      0xff,
                                      0xff,
                                      0xff,
                                      0xff,
                                      0xff,
                                      0x7f};
            const off_t at = round % 3 == 2 ? (off_t)(draw_number(&seed) % 4400)
                                            : (off_t)(draw_number(&seed) % RING);
            assert_int_equal(pwrite(fd, noise, 1 + draw_number(&seed) % 8, at) > 0, 1);
        }
        for (uint64_t number = 0; number < 20; number++)
            hits += get_picture(cache, number);
        if (round % 4 == 1)
            assert_int_equal(unlink(path), 0);
        if (round % 4 == 3)
            assert_int_equal(ftruncate(fd, (off_t)(draw_number(&seed) % 5000)), 0);
        for (uint64_t number = 0; number < 20; number++) {
            put_picture(cache, number + 100);
            hits += get_picture(cache, number + 100) + get_picture(cache, number);
        }
        close(fd);
        image_cache_close(&cache);
    }
    assert_true(hits > 100);
    harness_remove(&folder);
}

/* Several processes write and read at once. get_picture() checks every hit. */
static void test_cache__many_writers(void **state)
{
    char *folder = harness_temp();
    pid_t child[4];
    (void)state;
    for (int k = 0; k < 4; k++) {
        child[k] = fork();
        if (child[k])
            continue;
        uint64_t seed = (uint64_t)k;
        int hits = 0;
        image_cache *cache = open_cache(folder, RING);
        for (int i = 0; i < 400; i++) {
            const uint64_t number = draw_number(&seed) % 30;
            if (get_picture(cache, number))
                hits++;
            else
                put_picture(cache, number);
        }
        image_cache_close(&cache);
        _exit(hits > 20 ? 0 : 1);
    }
    for (int k = 0; k < 4; k++) {
        int how;
        assert_int_equal(waitpid(child[k], &how, 0), child[k]);
        assert_int_equal(how, 0);
    }
    harness_remove(&folder);
}

/* Everything that the patches depend on is part of the key. */
static void test_cache_key__covers_what_patches_depend_on(void **state)
{
    char *folder = harness_temp();
    const fit_grid grid = {64, 96, 4, 6, 0}, wide = {96, 64, 6, 4, 0};
    const conf options = {.cache_folder = folder, .cache_bytes = RING};
    conf other = options;
    image_cache *first, *second;
    (void)state;
    assert_ok(image_cache_open(&options, (hash128){{1}}, &first));
    assert_ok(image_cache_open(&options, (hash128){{2}}, &second));
    const hash128 one = image_cache_key(first, span_of("abc", 3), 60, 90, grid, &options);
    assert_true(hash_equal(one, image_cache_key(first, span_of("abc", 3), 60, 90, grid, &options)));
    assert_false(
        hash_equal(one, image_cache_key(first, span_of("abd", 3), 60, 90, grid, &options)));
    assert_false(
        hash_equal(one, image_cache_key(first, span_of("abc", 3), 60, 90, wide, &options)));
    assert_false(
        hash_equal(one, image_cache_key(first, span_of("abc", 3), 60, 91, grid, &options)));
    assert_false(
        hash_equal(one, image_cache_key(first, span_of("abc", 3), 61, 90, grid, &options)));
    assert_false(
        hash_equal(one, image_cache_key(second, span_of("abc", 3), 60, 90, grid, &options)));
    other.image_resampler = RESAMPLER_PILLOW;
    assert_false(hash_equal(one, image_cache_key(first, span_of("abc", 3), 60, 90, grid, &other)));
    other = options;
    other.image_transparency = TRANSPARENCY_5_23;
    assert_false(hash_equal(one, image_cache_key(first, span_of("abc", 3), 60, 90, grid, &other)));
    image_cache_close(&first);
    image_cache_close(&second);
    harness_remove(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cache__shared_and_kept),
        cmocka_unit_test(test_cache__oldest_pictures_are_dropped),
        cmocka_unit_test(test_cache__damaged_deleted_cut),
        cmocka_unit_test(test_cache__many_writers),
        cmocka_unit_test(test_cache_key__covers_what_patches_depend_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
