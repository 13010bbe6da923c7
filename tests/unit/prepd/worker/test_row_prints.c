/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of row_prints.h: what the built-in leases show, and that each fingerprint shows what it is
 * named for: a decoder that gives another pixel changes those of its format, and no others. */
#include "tests/harness.h"

#include <string.h>

#include "prepd/worker/row_prints.h"

static const char *spoilt;  /* pictures whose name ends so get another pixel */
static int resized_by_vips; /* what is added to a pixel that libvips resizes */
static int n_decoded, n_refused, n_clips;

static bool is_spoilt(const char *name)
{
    const size_t length = spoilt ? strlen(spoilt) : 0, own = strlen(name);
    return spoilt && own >= length && strcmp(name + own - length, spoilt) == 0;
}

/* Decodes whole, so that a pixel can be changed. */
static status decode(span bytes, const char *file, const conf *limits, const image_rows *rows,
                     arena *memory, image *out)
{
    (void)rows;
    const status st = image_decode(bytes, file, limits, memory, out);
    n_decoded += st == ST_OK;
    n_refused += st != ST_OK;
    if (st == ST_OK && is_spoilt(file))
        for (int i = 0; i < out->width * 3; i++)
            out->rgb[i] ^= 0x80;
    return st;
}

static status resize(const image *in, int32_t height, int32_t width, arena *memory, image *out)
{
    TRY(image_resize_vips(in, height, width, memory, out));
    out->rgb[0] = (uint8_t)(out->rgb[0] + resized_by_vips);
    return ST_OK;
}

static status decode_clip(const video_bytes *bytes, const char *file, const conf *limits,
                          const int64_t *index, int64_t count, arena *memory, video_take take,
                          void *user)
{
    n_clips++;
    return video_decode(bytes, file, limits, index, count, memory, take, user);
}

static const image_api pictures = {.header = image_header,
                                   .header_of_start = image_header_of_start,
                                   .decode = decode,
                                   .resize_vips = resize};
static const video_api videos = {.header = video_header, .decode = decode_clip};

static fingerprints make(const char *ending, int resized)
{
    fingerprints made = {0};
    spoilt = ending;
    resized_by_vips = resized;
    n_decoded = n_refused = n_clips = 0;
    assert_ok(row_prints_make(&pictures, &made));
    assert_ok(row_prints_make_clips(&pictures, &videos, &made));
    return made;
}

static void check_changed(const fingerprints *one, const fingerprints *other,
                          const bool changed[N_PRINTS])
{
    for (int k = N_STREAM_PRINTS; k < N_PRINTS; k++) {
        print_message("%s\n", print_names[k]);
        assert_int_equal(strcmp(one->of[k], other->of[k]) != 0, changed[k]);
    }
}

static bool ends_in(const char *name, const char *ending)
{
    const size_t length = strlen(name), tail = strlen(ending);
    return length >= tail && strcmp(name + length - tail, ending) == 0;
}

/* Every clip, and every picture but those that no release of libjpeg or not this one reads. */
static void test_row_prints__examples_decode(void **state)
{
    int n_pictures = 0, n_films = 0;
    (void)state;
    make(NULL, 0);
    for (int i = 0; i < n_examples; i++) {
        const char *name = examples[i].name;
        n_pictures += ends_in(name, ".jpg") || ends_in(name, ".png") || ends_in(name, ".webp");
        n_films += !strstr(name, ".j") && !strstr(name, ".png") && !ends_in(name, ".webp");
    }
    assert_int_equal(n_clips, n_films);
    assert_true(n_films >= 9);
    assert_true(n_decoded > 2 * n_pictures);
    assert_in_range(n_refused, 0, 8);
}

static void test_row_prints__are_the_same_each_time(void **state)
{
    (void)state;
    const fingerprints one = make(NULL, 0), other = make(NULL, 0);
    check_changed(&one, &other, (bool[N_PRINTS]){false});
}

static void test_row_prints__show_which_decoder_differs(void **state)
{
    (void)state;
    const fingerprints one = make(NULL, 0), webp = make(".webp", 0), png = make(".png", 0),
                       jpeg = make(".jpg", 0), turned = make("orientation7.jpg", 0),
                       sized = make(NULL, 1);
    check_changed(&one, &webp, (bool[N_PRINTS]){[PRINT_WEBP] = true});
    check_changed(
        &one, &png,
        (bool[N_PRINTS]){[PRINT_PNG] = true, [PRINT_RESIZING] = true, [PRINT_PACKING] = true});
    check_changed(&one, &jpeg,
                  (bool[N_PRINTS]){[PRINT_JPEG] = true,
                                   [PRINT_RESIZING] = true,
                                   [PRINT_FRAMES] = true,
                                   [PRINT_TEXTS] = true,
                                   [PRINT_PACKING] = true});
    check_changed(&one, &turned, (bool[N_PRINTS]){[PRINT_JPEG] = true});
    check_changed(&one, &sized, (bool[N_PRINTS]){[PRINT_RESIZING] = true, [PRINT_FRAMES] = true});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_prints__examples_decode),
        cmocka_unit_test(test_row_prints__are_the_same_each_time),
        cmocka_unit_test(test_row_prints__show_which_decoder_differs),
    };
    video_library_init();
    return image_library_init("test_row_prints") != ST_OK ||
           cmocka_run_group_tests(tests, NULL, NULL);
}
