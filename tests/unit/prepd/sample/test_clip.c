/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of clip.h: which frames of a video are taken, their grid and their times are compared with
 * the reference (tests/golden/clip.json, made by make_clip.py there). $TESSERA_CLIP_CASES names
 * another file of cases. */
#include "tests/harness.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/json.h"
#include "prepd/sample/clip.h"

static int64_t read_whole(const json_value *list, size_t index)
{
    return json_int(json_item(list, index), -1);
}

/* A long list is kept as ["sum", count, sum of (i + 1) * index[i]]. */
static void check_indices(const json_value *want, const int64_t *index, int64_t count)
{
    if (json_typeof(json_item(want, 0)) == JSON_TEXT) {
        int64_t sum = 0;
        for (int64_t i = 0; i < count; i++)
            sum += (i + 1) * index[i];
        assert_int_equal(count, read_whole(want, 1));
        assert_int_equal(sum, read_whole(want, 2));
        return;
    }
    assert_int_equal(count, json_count(want));
    for (int64_t i = 0; i < count; i++)
        assert_int_equal(index[i], read_whole(want, (size_t)i));
}

/* Of more than 32 pairs, the file has the texts of the first 31 and of the last one. */
static void check_texts(const json_value *want, const int64_t *index, int64_t count, double fps)
{
    const int64_t pairs = clip_pairs(count), kept = (int64_t)json_count(want);
    assert_int_equal(kept, pairs < 32 ? pairs : 32);
    for (int64_t i = 0; i < kept; i++) {
        const int64_t pair = i + 1 == kept ? pairs - 1 : i;
        char text[CLIP_TEXT];
        const int size = clip_text(clip_seconds(index, count, pair, fps), text);
        assert_int_equal(size, strlen(text));
        assert_string_equal(text, json_text(json_item(want, (size_t)i), ""));
    }
}

static void check_case(const json_value *one, arena *memory)
{
    const json_value *size = json_find(one, "size"), *areas = json_find(one, "limits");
    const json_value *want = json_find(one, "grid");
    const double fps = json_real(json_find(one, "fps"), -1.0);
    clip_limits limits = clip_published;
    int64_t *index, count;
    fit_grid grid;
    arena_reset(memory);
    limits.min_pixels = read_whole(areas, 0);
    limits.max_pixels = read_whole(areas, 1);
    assert_ok(
        clip_choose(json_int(json_find(one, "total"), 0), fps, &limits, memory, &index, &count));
    check_indices(json_find(one, "indices"), index, count);
    check_texts(json_find(one, "texts"), index, count, fps);
    const status st = clip_fit(count, read_whole(size, 0), read_whole(size, 1), &limits, &grid);
    if (!want) {
        assert_int_equal(st, ST_BAD_INPUT);
        return;
    }
    assert_ok(st);
    assert_int_equal(grid.pairs, read_whole(want, 0));
    assert_int_equal(grid.rows, read_whole(want, 1));
    assert_int_equal(grid.columns, read_whole(want, 2));
    assert_int_equal(grid.height, grid.rows * 16);
    assert_int_equal(grid.width, grid.columns * 16);
}

static void test_clip__equals_the_reference(void **state)
{
    const char *other = getenv("TESSERA_CLIP_CASES"), *source = getenv("TESSERA_SOURCE");
    char *path = NULL;
    json_value *file;
    arena memory;
    (void)state;
    if (other)
        assert_non_null(path = strdup(other));
    else
        assert_true(asprintf(&path, "%s/tests/golden/clip.json", source ? source : ".") > 0);
    assert_ok(json_load(path, &file));
    arena_init(&memory, 0);
    const json_value *cases = json_find(file, "cases");
    assert_true(json_count(cases) > 0);
    for (size_t i = 0; i < json_count(cases); i++)
        check_case(json_item(cases, i), &memory);
    print_message("%zu cases\n", json_count(cases));
    arena_done(&memory);
    json_free(&file);
    free(path);
}

/* The example of trainer/model/equations.md: 48 frames of 64 x 64 at 24 frames per second. */
static void test_clip__worked_example(void **state)
{
    static const int64_t frames[] = {0, 16, 31, 47};
    char text[CLIP_TEXT];
    int64_t *index, count;
    fit_grid grid;
    arena memory;
    (void)state;
    arena_init(&memory, 0);
    assert_ok(clip_choose(48, 24.0, &clip_published, &memory, &index, &count));
    assert_int_equal(count, 4);
    assert_memory_equal(index, frames, sizeof frames);
    clip_text(clip_seconds(index, count, 0, 24.0), text);
    assert_string_equal(text, "<0.3 seconds>");
    clip_text(clip_seconds(index, count, 1, 24.0), text);
    assert_string_equal(text, "<1.6 seconds>");
    assert_ok(clip_fit(count, 64, 64, &clip_published, &grid));
    assert_int_equal(grid.pairs, 2);
    assert_int_equal(grid.rows, 4);
    assert_int_equal(grid.columns, 4);
    arena_done(&memory);
}

/* A shrunk grid fits, is not smaller than needed, and depends only on the room. */
static void test_clip_shrink__fits(void **state)
{
    static const int64_t rooms[] = {4, 7, 40, 100, 5000, 98304};
    (void)state;
    for (int64_t count = 2; count < 12; count++)
        for (int64_t height = 32; height < 800; height += 37)
            for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) {
                fit_grid whole, grid, one_less;
                const int64_t least = clip_pairs(count) * 4;
                assert_ok(clip_fit(count, height, 320, &clip_published, &whole));
                const status st = clip_shrink(count, height, 320, &clip_published, rooms[i], &grid);
                if (least > rooms[i] && fit_patches(whole) > rooms[i]) {
                    assert_int_equal(st, ST_BAD_INPUT);
                    continue;
                }
                assert_ok(st);
                assert_true(fit_patches(grid) <= rooms[i]);
                assert_int_equal(grid.pairs, clip_pairs(count));
                assert_true(grid.rows > 0 && grid.columns > 0 && grid.rows % 2 == 0 &&
                            grid.columns % 2 == 0);
                if (fit_patches(whole) <= rooms[i])
                    assert_memory_equal(&grid, &whole, sizeof grid);
                assert_ok(
                    clip_shrink(count, height, 320, &clip_published, fit_patches(grid), &one_less));
                assert_int_equal(fit_patches(one_less), fit_patches(grid));
            }
    fit_grid grid;
    /* 2 pairs of at most 600 patches */
    assert_ok(clip_shrink(4, 480, 640, &clip_published, 1200, &grid));
    assert_true(fit_patches(grid) > 1000);
    assert_fails(ST_BAD_INPUT, clip_shrink(40, 480, 640, &clip_published, 79, &grid),
                 "video.max_frames");
}

static void test_clip__refuses_hostile_values(void **state)
{
    const double rates[] = {-1.0, NAN, INFINITY, -INFINITY};
    const int64_t sides[] = {INT64_MIN, -1, 0, 31, INT64_MAX};
    clip_limits limits = clip_published;
    char text[CLIP_TEXT];
    int64_t *index, count;
    fit_grid grid;
    arena memory;
    (void)state;
    arena_init(&memory, 0);
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        assert_fails(ST_BAD_INPUT, clip_choose(9, rates[i], &limits, &memory, &index, &count),
                     "per second");
    assert_fails(ST_BAD_INPUT, clip_choose(0, 24.0, &limits, &memory, &index, &count), "0 frames");
    assert_fails(ST_BAD_INPUT, clip_choose(INT64_MAX, 24.0, &limits, &memory, &index, &count),
                 "frames");
    assert_ok(clip_choose((int64_t)1 << 40, DBL_MIN, &limits, &memory, &index, &count));
    assert_int_equal(count, 768);
    assert_int_equal(index[767], ((int64_t)1 << 40) - 1);
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++) {
        assert_fails(ST_BAD_INPUT, clip_fit(4, sides[i], 64, &limits, &grid), "sides");
        assert_fails(ST_BAD_INPUT, clip_fit(4, 64, sides[i], &limits, &grid), "sides");
    }
    assert_fails(ST_BAD_INPUT, clip_fit(INT64_MAX, 64, 64, &limits, &grid), "too large");
    assert_fails(ST_BAD_INPUT, clip_fit(1, 64, 64, &limits, &grid), "at least 2");
    limits.min_pixels = INT64_MAX;
    assert_fails(ST_CONFIG, clip_fit(4, 64, 64, &limits, &grid), "min <= max");
    limits.max_pixels = INT64_MAX;
    assert_fails(ST_BAD_INPUT, clip_fit(2, 32, 6400, &limits, &grid), "too large");
    limits = clip_published;
    limits.min_frames = 0;
    assert_fails(ST_CONFIG, clip_choose(9, 24.0, &limits, &memory, &index, &count), "min <= max");
    assert_true(clip_text(1e15, text) < CLIP_TEXT);
    arena_done(&memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clip__equals_the_reference),
        cmocka_unit_test(test_clip__worked_example),
        cmocka_unit_test(test_clip_shrink__fits),
        cmocka_unit_test(test_clip__refuses_hostile_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
