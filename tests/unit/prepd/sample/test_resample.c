/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of resample.h: values computed by torch's byte kernel, sums over what Pillow makes of
 * synthetic pictures (BICUBIC), and that every instruction set and every way of cutting the rows
 * gives the same bytes. Letters: x, y a place in the picture. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf/conf.h"
#include "prepd/sample/resample.h"
#include "tests/harness.h"

static arena scratch;

static int setup_scratch(void **state)
{
    (void)state;
    arena_init(&scratch, 0);
    return 0;
}

static int teardown_scratch(void **state)
{
    (void)state;
    arena_done(&scratch);
    return 0;
}

/* A line of pixels must give the same values as a row and as a column. */
static void check_line(const uint8_t *in, int n_in, const uint8_t *wanted, int n_out)
{
    uint8_t out[16];
    assert_ok(resample_pixels(RESAMPLER_TORCH, 1, in, 1, n_in, out, 1, n_out, &scratch));
    assert_memory_equal(out, wanted, (size_t)n_out);
    assert_ok(resample_pixels(RESAMPLER_TORCH, 1, in, n_in, 1, out, n_out, 1, &scratch));
    assert_memory_equal(out, wanted, (size_t)n_out);
}

static void test_resample__torch_lines(void **state)
{
    static const uint8_t down[] = {0, 255, 0, 255, 10, 20, 200, 255};
    static const uint8_t down_to[] = {104, 121, 120, 51, 241};
    static const uint8_t up[] = {0, 255, 30, 200, 255};
    static const uint8_t up_to[] = {0, 112, 253, 87, 58, 192, 242, 255};
    (void)state;
    check_line(down, 8, down_to, 5);
    check_line(up, 5, up_to, 8);
}

static void test_resample__torch_picture(void **state)
{
    static const uint8_t first[] = {0, 3, 7, 11, 13, 17, 21, 24, 27, 34, 37, 41};
    uint8_t in[24 * 40], out[32 * 32];
    (void)state;
    for (int y = 0; y < 24; y++)
        for (int x = 0; x < 40; x++)
            in[y * 40 + x] = (uint8_t)(3 * x + 7 * y + 5 * ((x * y) % 11));
    assert_ok(resample_pixels(RESAMPLER_TORCH, 1, in, 24, 40, out, 32, 32, &scratch));
    assert_memory_equal(out, first, sizeof first);
    int64_t sum = 0;
    for (size_t i = 0; i < sizeof out; i++)
        sum += out[i];
    assert_int_equal(sum, 146930);

    /* Three channels are resampled like three pictures. */
    uint8_t in3[24 * 40 * 3], out3[32 * 32 * 3];
    for (size_t i = 0; i < sizeof in3; i++)
        in3[i] = in[i / 3];
    assert_ok(resample_pixels(RESAMPLER_TORCH, 3, in3, 24, 40, out3, 32, 32, &scratch));
    for (size_t i = 0; i < sizeof out3; i++)
        assert_int_equal(out3[i], out[i / 3]);
}

static uint8_t *picture(int64_t width, int64_t height)
{
    uint8_t *rgb = malloc((size_t)(width * height * 3));
    assert_non_null(rgb);
    for (int64_t y = 0; y < height; y++)
        for (int64_t x = 0; x < width; x++)
            for (int64_t channel = 0; channel < 3; channel++)
                rgb[(y * width + x) * 3 + channel] =
                    (uint8_t)(3 * x + 7 * y + 41 * channel + 5 * ((x * y) % 11) +
                              ((x >> 4) ^ (y >> 3)) * 29 + ((x * x + y * channel) >> 6));
    return rgb;
}

/* The sum of all bytes, each times a number that depends on its place, modulo 2^64. */
static uint64_t place_sum(const uint8_t *bytes, size_t size)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < size; i++)
        sum += bytes[i] * (i * 0x9E3779B97F4A7C15u + 1);
    return sum;
}

static void test_resample__pillow_pictures(void **state)
{
    static const struct {
        int32_t width, height, to_width, to_height;
        uint64_t sum;
    } cases[] = {
        {500, 375, 512, 384, 0xa6b0d33ad59849f0u}, {333, 500, 320, 512, 0xf8939c46d15f3802u},
        {200, 150, 320, 224, 0xdc8a1ca8d5d218f0u}, {1920, 1080, 1920, 1088, 0xa24eeebe74cd8812u},
        {640, 480, 224, 160, 0xa55269058639db0du}, {37, 5, 64, 320, 0x084f99480c65f16du},
        {1500, 90, 32, 32, 0x613a2cb63bd851b4u},   {3, 2, 64, 64, 0xf84fb1fbe3d09a57u},
        {1, 1, 32, 32, 0x68013dacade8a600u},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t *in = picture(cases[i].width, cases[i].height);
        const size_t size = (size_t)cases[i].to_width * (size_t)cases[i].to_height * 3;
        uint8_t *out = malloc(size), *torch = malloc(size);
        assert_true(out && torch);
        assert_ok(resample_pixels(RESAMPLER_PILLOW, 3, in, cases[i].height, cases[i].width, out,
                                  cases[i].to_height, cases[i].to_width, &scratch));
        if (place_sum(out, size) != cases[i].sum)
            fail_msg("%d x %d -> %d x %d: 0x%016" PRIx64, cases[i].width, cases[i].height,
                     cases[i].to_width, cases[i].to_height, place_sum(out, size));
        /* Results of torch and Pillow differ by at most 2. */
        assert_ok(resample_pixels(RESAMPLER_TORCH, 3, in, cases[i].height, cases[i].width, torch,
                                  cases[i].to_height, cases[i].to_width, &scratch));
        for (size_t j = 0; j < size; j++)
            assert_in_range(torch[j] - out[j] + 2, 0, 4);
        free(in);
        free(out);
        free(torch);
    }
}

/* Sums over what Pillow 11.3 and 13.0 make of these pictures. They differ where 13.0 resamples the
 * height first. */
static void test_resample__pillow13_may_take_the_height_first(void **state)
{
    static const struct {
        int32_t width, height, to_width, to_height;
        uint64_t sum, sum13;
    } cases[] = {
        {60, 400, 64, 320, 0xf8f90a7b9d25aba5u, 0xa522c41e99406ff7u},
        {30, 500, 64, 448, 0xcf350fb883ecbea6u, 0x677a98847dc60ba7u},
        {500, 30, 448, 64, 0x6b1eb62eed771847u, 0x6b1eb62eed771847u},
        {90, 1500, 32, 32, 0x4cd4760e8ef22328u, 0xf34946e8c6d8896eu},
        {1500, 90, 32, 32, 0x613a2cb63bd851b4u, 0x613a2cb63bd851b4u},
        {1000, 3000, 896, 2688, 0xeaea28206531ae84u, 0x50ae4a5b28cf0095u},
        /* here the height shrinks by exactly twice as many pixels, not by more */
        {333, 500, 320, 474, 0xbc83ff135a024433u, 0xbc83ff135a024433u},
        {333, 500, 320, 473, 0xf2d55842046060b7u, 0x724b7887bf2ca9afu},
        {500, 375, 512, 384, 0xa6b0d33ad59849f0u, 0xa6b0d33ad59849f0u},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t *in = picture(cases[i].width, cases[i].height);
        const size_t size = (size_t)cases[i].to_width * (size_t)cases[i].to_height * 3;
        uint8_t *out = malloc(size);
        assert_non_null(out);
        for (int newer = 0; newer < 2; newer++) {
            const uint64_t want = newer ? cases[i].sum13 : cases[i].sum;
            assert_ok(resample_pixels(newer ? RESAMPLER_PILLOW13 : RESAMPLER_PILLOW, 3, in,
                                      cases[i].height, cases[i].width, out, cases[i].to_height,
                                      cases[i].to_width, &scratch));
            if (place_sum(out, size) != want)
                fail_msg("%d x %d -> %d x %d, Pillow %s", cases[i].width, cases[i].height,
                         cases[i].to_width, cases[i].to_height, newer ? "13" : "11.3");
        }
        free(in);
        free(out);
    }
}

static void test_resample__equal_size_is_copied_and_scratch_is_returned(void **state)
{
    uint8_t *in = picture(40, 24), out[40 * 24 * 3];
    (void)state;
    const size_t before = scratch.used_bytes;
    assert_ok(resample_pixels(RESAMPLER_TORCH, 3, in, 24, 40, out, 24, 40, &scratch));
    assert_memory_equal(in, out, sizeof out);
    assert_ok(resample_pixels(RESAMPLER_TORCH, 3, in, 24, 40, out, 20, 16, &scratch));
    assert_int_equal(scratch.used_bytes, before);
    arena tight;
    arena_init(&tight, 256);
    assert_fails(ST_NO_MEMORY, resample_pixels(RESAMPLER_TORCH, 3, in, 24, 40, out, 20, 16, &tight),
                 "");
    arena_done(&tight);
    free(in);
}

/* Noise with many bytes of 0 and 255, in a block of the exact size, so that a sanitizer sees a read
 * beyond it. */
static uint8_t *noise(size_t size, uint64_t seed)
{
    uint8_t *bytes = malloc(size);
    assert_non_null(bytes);
    for (size_t i = 0; i < size; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        bytes[i] = seed >> 62 == 0 ? 0 : seed >> 62 == 1 ? 255 : (uint8_t)(seed >> 40);
    }
    return bytes;
}

/* Resamples the whole picture, count rows at a time. */
static void run_resampler(const resample_kernels *kernels, int method, int channels,
                          const uint8_t *in, const int32_t size[4], int32_t count, uint8_t *out)
{
    resampler *maker;
    const arena_mark mark = arena_save(&scratch);
    assert_ok(resampler_with(kernels, method, channels, in, size[0], size[1], size[2], size[3],
                             &scratch, &maker));
    for (int32_t y = 0; y < size[2]; y += count)
        resampler_rows(maker, y, size[2] - y < count ? size[2] - y : count,
                       out + (size_t)y * (size_t)size[3] * (size_t)channels);
    arena_release(&scratch, mark);
}

static void check_kernels(int method, int channels, const int32_t size[4], uint64_t seed)
{
    const size_t count = (size_t)size[2] * (size_t)size[3] * (size_t)channels;
    uint8_t *in = noise((size_t)size[0] * (size_t)size[1] * (size_t)channels, seed);
    uint8_t *want = malloc(count), *got = malloc(count);
    const resample_kernels *plain = NULL;
    assert_true(want && got);
    for (size_t i = 0; resample_kernels_here(i); i++)
        plain = resample_kernels_here(i);
    assert_true(plain && !plain->wide);
    run_resampler(plain, method, channels, in, size, size[2], want);
    for (size_t i = 0; resample_kernels_here(i) != plain; i++) {
        const resample_kernels *kernels = resample_kernels_here(i);
        memset(got, 1, count);
        run_resampler(kernels, method, channels, in, size, 1 + (int32_t)(seed % 40), got);
        if (memcmp(got, want, count) != 0)
            fail_msg("%s, method %d, %d channels: %d x %d -> %d x %d differ", kernels->name, method,
                     channels, size[1], size[0], size[3], size[2]);
    }
    free(in);
    free(want);
    free(got);
}

static void test_resample__every_instruction_set_gives_the_same_bytes(void **state)
{
    static const int32_t sizes[][4] = {
        {480, 640, 480, 640}, {427, 640, 416, 640}, {640, 427, 640, 416}, {333, 500, 320, 512},
        {375, 500, 384, 512}, {1080, 1920, 64, 96}, {2, 3000, 32, 32},    {3000, 2, 32, 32},
        {1, 1, 96, 96},       {90, 1500, 1500, 90}, {33, 31, 32, 32},     {32, 33, 32, 32},
        {31, 29, 33, 35},     {5, 700, 5, 704},     {700, 5, 704, 5},
    };
    uint64_t seed = 1;
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        check_kernels(RESAMPLER_TORCH, 3, sizes[i], i + 1);
        check_kernels(RESAMPLER_PILLOW, 3, sizes[i], i + 1);
        check_kernels(RESAMPLER_PILLOW13, 3, sizes[i], i + 1);
    }
    for (int i = 0; i < 600; i++) {
        int32_t size[4];
        for (int k = 0; k < 4; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            size[k] = 1 + (int32_t)(seed >> 33) % 150;
        }
        check_kernels(i % 4 ? RESAMPLER_TORCH : RESAMPLER_PILLOW, i % 5 ? 3 : 1 + i % 4, size,
                      seed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resample__torch_lines),
        cmocka_unit_test(test_resample__torch_picture),
        cmocka_unit_test(test_resample__pillow_pictures),
        cmocka_unit_test(test_resample__every_instruction_set_gives_the_same_bytes),
        cmocka_unit_test(test_resample__pillow13_may_take_the_height_first),
        cmocka_unit_test(test_resample__equal_size_is_copied_and_scratch_is_returned),
    };
    return cmocka_run_group_tests(tests, setup_scratch, teardown_scratch);
}
