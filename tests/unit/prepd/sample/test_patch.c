/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of patch.h and patch.h: pictures are cut into patches in merge order and joined again, pairs
 * of frames and planes of YCbCr are cut alike, and every instruction set gives the same bytes.
 * Letters: x, y a place in the picture. */
#include <stdlib.h>
#include <string.h>

#include "prepd/sample/patch.h"
#include "proto/row/batch.h"
#include "tests/harness.h"

enum { HEIGHT = 64, WIDTH = 96 }; /* a grid of 4 x 6 patches */

/* The value of a byte depends on its place, so that a misplaced one is seen. */
static uint8_t value_at(int y, int x, int channel)
{
    return (uint8_t)(y * 131 + x * 7 + channel * 53 + (y / 16) * 17 + (x / 16) * 29);
}

static void test_patch_cut__merge_order_and_columns(void **state)
{
    static const int first[13][2] = {{0, 0}, {0, 1}, {1, 0}, {1, 1}, {0, 2}, {0, 3}, {1, 2},
                                     {1, 3}, {0, 4}, {0, 5}, {1, 4}, {1, 5}, {2, 0}};
    static uint8_t rgb[HEIGHT * WIDTH * 3], patches[HEIGHT * WIDTH * 3];
    (void)state;
    for (int y = 0; y < HEIGHT; y++)
        for (int x = 0; x < WIDTH; x++)
            for (int channel = 0; channel < 3; channel++)
                rgb[(y * WIDTH + x) * 3 + channel] = value_at(y, x, channel);
    patch_cut(rgb, HEIGHT, WIDTH, patches);
    for (int i = 0; i < 13; i++)
        for (int channel = 0; channel < 3; channel++)
            for (int y = 0; y < 16; y++)
                for (int x = 0; x < 16; x++)
                    assert_int_equal(patches[i * 768 + channel * 256 + y * 16 + x],
                                     value_at(first[i][0] * 16 + y, first[i][1] * 16 + x, channel));
}

/* A patch of a pair has the columns (channel, frame, y, x), and each frame is cut as a picture
 * is. */
static void test_patch_cut_pair__cuts_each_frame_as_a_picture(void **state)
{
    static uint8_t rgb[2][HEIGHT * WIDTH * 3], one[2][HEIGHT * WIDTH * 3];
    static uint8_t both[2 * HEIGHT * WIDTH * 3];
    (void)state;
    for (int frame = 0; frame < 2; frame++) {
        for (int i = 0; i < HEIGHT * WIDTH * 3; i++)
            rgb[frame][i] = (uint8_t)(i * 7 + i / 100 + frame * 91);
        patch_cut(rgb[frame], HEIGHT, WIDTH, one[frame]);
    }
    patch_cut_pair(rgb[0], rgb[1], HEIGHT, WIDTH, both);
    for (int patch = 0; patch < HEIGHT / 16 * (WIDTH / 16); patch++)
        for (int channel = 0; channel < 3; channel++)
            for (int frame = 0; frame < 2; frame++)
                assert_memory_equal(both + patch * 1536 + channel * 512 + frame * 256,
                                    one[frame] + patch * 768 + channel * 256, 256);
}

static void test_patch_join__inverts_cut(void **state)
{
    static const int sizes[][2] = {{32, 32}, {32, 320}, {160, 32}, {96, 64}};
    uint64_t seed = harness_seed();
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const size_t count = (size_t)sizes[i][0] * (size_t)sizes[i][1] * 3;
        uint8_t *rgb = malloc(count), *patches = malloc(count), *back = malloc(count);
        assert_true(rgb && patches && back);
        for (size_t j = 0; j < count; j++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            rgb[j] = (uint8_t)(seed >> 56);
        }
        patch_cut(rgb, sizes[i][0], sizes[i][1], patches);
        assert_memory_not_equal(rgb, patches, count);
        patch_join(patches, sizes[i][0], sizes[i][1], back);
        assert_memory_equal(rgb, back, count);
        free(rgb);
        free(patches);
        free(back);
    }
}

static void test_patch_cut__every_instruction_set_gives_the_same_bytes(void **state)
{
    enum { STRIDE = 61, SIDE = 16, BYTES = (SIDE - 1) * STRIDE + SIDE * 3 };
    uint8_t want[PATCH_BYTES], got[PATCH_BYTES];
    uint8_t *in = malloc(BYTES); /* the exact size, so that a sanitizer sees a read beyond it */
    (void)state;
    assert_non_null(in);
    for (int i = 0; i < BYTES; i++)
        in[i] = (uint8_t)(i * 73 + i / 7);
    patch_cut_plain(in, STRIDE, want);
    memset(got, 0, sizeof got);
    patch_cutter_here()(in, STRIDE, got);
    assert_memory_equal(got, want, sizeof want);
    free(in);
}

/* All 2^24 colours, a patch at a time: luma counts from 0 to 255 in each. */
static void test_patch_cut_ycc__every_instruction_set_gives_the_same_bytes(void **state)
{
    static uint8_t planes[3][256], want[PATCH_BYTES], got[PATCH_BYTES];
    const uint8_t *const from[] = {planes[0], planes[1], planes[2]};
    (void)state;
    for (int i = 0; i < 256; i++)
        planes[0][i] = (uint8_t)i;
    for (int i = 0; i < 1 << 16; i++) {
        memset(planes[1], i & 255, 256);
        memset(planes[2], i >> 8, 256);
        patch_cut_ycc_plain(from, 16, want);
        patch_ycc_cutter_here()(from, 16, got);
        assert_memory_equal(got, want, sizeof want);
    }
}

/* The patches are those of the picture converted to RGB first, even if rows of the planes are
 * longer than the picture is wide. */
static void test_patch_cut_ycc__equals_patch_cut(void **state)
{
    enum { STRIDE = WIDTH + 24 };
    static uint8_t planes[3][HEIGHT * STRIDE], rgb[HEIGHT * WIDTH * 3];
    static uint8_t want[HEIGHT * WIDTH * 3], got[HEIGHT * WIDTH * 3];
    const uint8_t *const from[] = {planes[0], planes[1], planes[2]};
    (void)state;
    for (int channel = 0; channel < 3; channel++)
        for (int i = 0; i < HEIGHT * STRIDE; i++)
            planes[channel][i] = value_at(i / STRIDE, i % STRIDE, channel);
    for (int y = 0; y < HEIGHT; y++)
        for (int x = 0; x < WIDTH; x++)
            ycc_to_rgb(planes[0][y * STRIDE + x], planes[1][y * STRIDE + x],
                       planes[2][y * STRIDE + x], rgb + (y * WIDTH + x) * 3);
    patch_cut(rgb, HEIGHT, WIDTH, want);
    patch_cut_ycc(from, STRIDE, HEIGHT, WIDTH, got);
    assert_memory_equal(got, want, sizeof want);
}

/* Colours whose values follow from the formulas of JFIF. */
static void test_ycc__known_colours(void **state)
{
    static const uint8_t ycc[][3] = {{0, 128, 128},   {255, 128, 128}, {76, 85, 255},
                                     {150, 44, 21},   {29, 255, 107},  {128, 0, 0},
                                     {128, 255, 255}, {200, 128, 0}};
    static const uint8_t want[][3] = {{0, 0, 0},   {255, 255, 255}, {254, 0, 0},   {0, 255, 1},
                                      {0, 0, 254}, {0, 255, 0},     {255, 0, 255}, {21, 255, 200}};
    (void)state;
    for (size_t i = 0; i < sizeof ycc / sizeof *ycc; i++) {
        uint8_t rgb[3];
        ycc_to_rgb(ycc[i][0], ycc[i][1], ycc[i][2], rgb);
        assert_memory_equal(rgb, want[i], 3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_patch_cut__every_instruction_set_gives_the_same_bytes),
        cmocka_unit_test(test_patch_cut__merge_order_and_columns),
        cmocka_unit_test(test_patch_cut_pair__cuts_each_frame_as_a_picture),
        cmocka_unit_test(test_patch_cut_ycc__every_instruction_set_gives_the_same_bytes),
        cmocka_unit_test(test_patch_cut_ycc__equals_patch_cut),
        cmocka_unit_test(test_ycc__known_colours),
        cmocka_unit_test(test_patch_join__inverts_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
