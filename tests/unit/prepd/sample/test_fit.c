/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of fit.h: the size that a picture is resized to, against published sizes, against the
 * definition, and against the reference (tests/golden/fit.json). */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/json.h"
#include "prepd/sample/fit.h"
#include "tests/harness.h"

static const fit_limits published = {65536, 16777216};

/* Sizes by transformers' smart_resize with the published limits. */
static void test_fit_image__published_sizes(void **state)
{
    static const struct {
        int64_t height, width;
        int32_t to_height, to_width;
        int64_t tokens;
    } cases[] = {
        {480, 640, 480, 640, 300},       {1365, 2048, 1376, 2048, 2752},
        {16, 16, 256, 256, 64},          {48, 48, 256, 256, 64},
        {80, 80, 256, 256, 64},          {224, 224, 256, 256, 64},
        {300, 100, 448, 160, 70},        {500, 30, 1056, 64, 66},
        {1080, 1920, 1088, 1920, 2040},  {2160, 3840, 2176, 3840, 8160},
        {4320, 7680, 3072, 5440, 16320}, {5000, 5000, 4096, 4096, 16384},
        {33, 4000, 32, 4000, 125},       {1, 200, 32, 3648, 114},
        {1000, 17, 1984, 64, 124},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fit_grid grid;
        assert_ok(fit_image(cases[i].height, cases[i].width, published, &grid));
        assert_int_equal(grid.height, cases[i].to_height);
        assert_int_equal(grid.width, cases[i].to_width);
        assert_int_equal(grid.rows, grid.height / 16);
        assert_int_equal(grid.columns, grid.width / 16);
        assert_int_equal(fit_tokens(grid), cases[i].tokens);
        assert_int_equal(fit_patches(grid), cases[i].tokens * 4);
    }
}

/* 48 / 32 = 1.5 and 80 / 32 = 2.5 are both rounded to 2, because half is rounded to even. */
static void test_fit_image__rounds_half_to_even(void **state)
{
    const fit_limits wide_open = {1, INT64_MAX};
    fit_grid grid;
    (void)state;
    assert_ok(fit_image(48, 80, wide_open, &grid));
    assert_int_equal(grid.height, 64);
    assert_int_equal(grid.width, 64);
    assert_ok(
        fit_image(15, 112, wide_open, &grid)); /* rounds to 0 blocks, which is raised to one */
    assert_true(grid.height >= 32 && grid.width >= 32);
}

static void test_fit_image__refuses(void **state)
{
    fit_grid grid = {7, 7, 7, 7};
    (void)state;
    assert_fails(ST_BAD_INPUT, fit_image(1, 201, published, &grid), "more than 200 times");
    assert_fails(ST_BAD_INPUT, fit_image(0, 10, published, &grid), "the picture has 10 x 0");
    assert_fails(ST_BAD_INPUT, fit_image(10, -3, published, &grid), "the picture has -3 x 10");
    assert_fails(ST_BAD_INPUT, fit_image(INT64_MAX, INT64_MAX, published, &grid), "sides");
    assert_fails(ST_CONFIG, fit_image(10, 10, (fit_limits){10, 9}, &grid), "min");
    assert_int_equal(grid.height, 7); /* a failure leaves the result as it was */
}

/* The definition: the largest limit of pixels whose grid fits, found here by trying all of them. */
static void test_fit_shrink__is_the_largest_that_fits(void **state)
{
    const fit_limits limits = {2048, 40000};
    uint64_t seed = harness_seed();
    (void)state;
    for (int round = 0; round < 40; round++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const int64_t height = 1 + (int64_t)(seed >> 40) % 300;
        const int64_t width = 1 + (int64_t)(seed >> 20) % 300;
        const int64_t patches = 4 + (int64_t)(seed >> 10) % 160;
        fit_grid grid, wanted = {0};
        if (fit_image(height, width, limits, &grid) != ST_OK)
            continue;
        for (int64_t max = limits.max_pixels; max >= 1 && !wanted.rows; max--) {
            const int64_t min = max < limits.min_pixels ? max : limits.min_pixels;
            assert_ok(fit_image(height, width, (fit_limits){min, max}, &grid));
            if (fit_patches(grid) <= patches)
                wanted = grid;
        }
        assert_ok(fit_shrink(height, width, limits, patches, &grid));
        if (grid.height != wanted.height || grid.width != wanted.width)
            fail_msg("%" PRId64 " x %" PRId64 " within %" PRId64
                     " patches: %d x %d, wanted %d x %d",
                     height, width, patches, grid.height, grid.width, wanted.height, wanted.width);
    }
}

static void test_fit_shrink__edges(void **state)
{
    fit_grid grid, whole;
    (void)state;
    assert_ok(fit_image(480, 640, published, &whole));
    assert_ok(fit_shrink(480, 640, published, fit_patches(whole), &grid));
    assert_memory_equal(&grid, &whole, sizeof grid); /* a picture that fits is not shrunk */
    assert_ok(fit_shrink(480, 640, published, fit_patches(whole) - 1, &grid));
    assert_true(fit_patches(grid) < fit_patches(whole) && fit_patches(grid) > 1000);
    assert_ok(fit_shrink(4000, 4000, published, 4, &grid));
    assert_int_equal(fit_patches(grid), 4);
    /* the room in the row comes before the minimum of pixels */
    assert_ok(fit_shrink(16, 16, published, 100, &grid));
    assert_int_equal(grid.height, 160);
    assert_fails(ST_BAD_INPUT, fit_shrink(480, 640, published, 3, &grid), "room for 3 patches");
}

/* tests/golden/fit.json, made by make_fit.py there, has heights, widths, limits and the sides that
 * the reference gives, or 0 if it refuses. $TESSERA_FIT_CASES names another file of cases. */
static void test_fit_image__equals_the_reference(void **state)
{
    const char *other = getenv("TESSERA_FIT_CASES"), *source = getenv("TESSERA_SOURCE");
    char path[4096];
    json_value *file;
    (void)state;
    if (other)
        snprintf(path, sizeof path, "%s", other);
    else
        snprintf(path, sizeof path, "%s/tests/golden/fit.json", source ? source : ".");
    assert_ok(json_load(path, &file));
    assert_true(json_count(file) > 0);
    for (size_t i = 0; i < json_count(file); i++) {
        int64_t values[6];
        fit_grid grid = {0};
        for (size_t k = 0; k < 6; k++)
            values[k] = json_int(json_item(json_item(file, i), k), -1);
        const status st =
            fit_image(values[0], values[1], (fit_limits){values[2], values[3]}, &grid);
        assert_int_equal(st, values[4] ? ST_OK : ST_BAD_INPUT);
        assert_int_equal(grid.height, values[4]);
        assert_int_equal(grid.width, values[5]);
    }
    print_message("%zu sizes\n", json_count(file));
    json_free(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fit_image__published_sizes),
        cmocka_unit_test(test_fit_image__equals_the_reference),
        cmocka_unit_test(test_fit_image__rounds_half_to_even),
        cmocka_unit_test(test_fit_image__refuses),
        cmocka_unit_test(test_fit_shrink__is_the_largest_that_fits),
        cmocka_unit_test(test_fit_shrink__edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
