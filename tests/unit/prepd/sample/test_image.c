/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of image.h: pictures decode to the pixels that Pillow gives (tests/golden/images.json, for
 * the shared pictures if they are there), limits hold, cut, damaged and foreign files are refused,
 * and a written JPEG is read back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/json.h"
#include "prepd/sample/decode/image.h"
#include "prepd/sample/decode/image_builtin.h"
#include "tests/harness.h"

static const conf limits = {.image_file_bytes = 268435456, .image_input_pixels = 178956970};
static arena pixels;

static int setup_images(void **state)
{
    (void)state;
    arena_init(&pixels, 0);
    return image_library_init("test_image") != ST_OK;
}

static int teardown_images(void **state)
{
    (void)state;
    arena_done(&pixels);
    image_library_done();
    return 0;
}

static span read_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s cannot be opened", path);
    fseek(file, 0, SEEK_END);
    const long size = ftell(file);
    rewind(file);
    uint8_t *data = malloc(size > 0 ? (size_t)size : 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, (size_t)size, file), size);
    fclose(file);
    return span_of(data, (size_t)size);
}

static void check_golden(const json_value *entry)
{
    const char *file = json_text(json_find(entry, "file"), "");
    char relative[512];
    snprintf(relative, sizeof relative, "data/%s", file);
    char *path = harness_shared(relative);
    if (!path)
        fail_msg("%s is in the table but not in the shared data", file);
    const span bytes = read_file(path);
    free(path);
    image im;
    image_info info;
    const json_value *error = json_find(entry, "error");
    if (error) {
        assert_fails(ST_BAD_INPUT, image_decode(bytes, file, &limits, &pixels, &im),
                     json_text(error, "?"));
        assert_string_equal(status_last()->input, file);
    } else {
        assert_ok(image_header(bytes, file, &limits, &info));
        assert_ok(image_decode(bytes, file, &limits, &pixels, &im));
        assert_int_equal(im.width, json_int(json_find(entry, "width"), -1));
        assert_int_equal(im.height, json_int(json_find(entry, "height"), -1));
        assert_int_equal(info.width, im.width);
        assert_int_equal(info.height, im.height);
        char text[HASH_TEXT];
        hash_print(hash_bytes(im.rgb, (size_t)im.width * (size_t)im.height * 3), text);
        if (strcmp(text, json_text(json_find(entry, "rgb"), "")) != 0)
            fail_msg("%s: pixels hash to %s", file, text);
    }
    free((void *)(uintptr_t)bytes.data);
    arena_reset(&pixels);
}

static void test_image_decode__golden(void **state)
{
    (void)state;
    char *folder = harness_shared("data/odd");
    if (!folder)
        HARNESS_SKIP("no shared pictures");
    free(folder);
    const char *source = getenv("TESSERA_SOURCE");
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/golden/images.json", source ? source : ".");
    json_value *table = NULL;
    assert_ok(json_load(path, &table));
    const json_value *images = json_find(table, "images");
    assert_true(json_count(images) > 40);
    for (size_t i = 0; i < json_count(images); i++)
        check_golden(json_item(images, i));
    json_free(&table);
}

/* The file cut at any byte must be refused, and the message must name it. */
static void check_cuts(span whole, const char *name)
{
    image im;
    assert_ok(image_decode(whole, name, &limits, &pixels, &im));
    for (size_t length = 0; length < whole.size; length++) {
        /* A copy of exactly these bytes, so that a sanitizer sees a read beyond them. */
        uint8_t *cut = malloc(length ? length : 1);
        assert_non_null(cut);
        memcpy(cut, whole.data, length);
        if (image_decode(span_of(cut, length), name, &limits, &pixels, &im) == ST_OK)
            fail_msg("%s cut to %zu of %zu bytes was accepted", name, length, whole.size);
        assert_string_equal(status_last()->input, name);
        free(cut);
        arena_reset(&pixels);
    }
}

static void test_image_decode__refuses_every_cut(void **state)
{
    (void)state;
    check_cuts(span_of(builtin_jpeg, sizeof builtin_jpeg), "cut.jpg");
    check_cuts(span_of(builtin_png, sizeof builtin_png), "cut.png");
    check_cuts(span_of(builtin_webp, sizeof builtin_webp), "cut.webp");
}

/* A chunk before the pixels claims 1.3 GB. The file is refused before memory is taken for it. */
static void test_image_decode__refuses_a_chunk_longer_than_the_file(void **state)
{
    enum { AT = 33 }; /* the end of IHDR */
    static const uint8_t claim[] = {0x50, 0, 0, 0, 'e', 'X', 'I', 'f', 'M', 'M', 0, '*'};
    uint8_t png[sizeof builtin_png + sizeof claim];
    image_info info;
    (void)state;
    memcpy(png, builtin_png, AT);
    memcpy(png + AT, claim, sizeof claim);
    memcpy(png + AT + sizeof claim, builtin_png + AT, sizeof builtin_png - AT);
    assert_fails(ST_BAD_INPUT, image_header(span_of(png, sizeof png), "x.png", &limits, &info),
                 "the file ends before its pixels");
}

/* A damaged file is refused or gives some picture. Nothing else may happen. */
static void test_image_decode__survives_damage(void **state)
{
    static const span files[] = {
        {builtin_jpeg, sizeof builtin_jpeg},
        {builtin_png, sizeof builtin_png},
        {builtin_webp, sizeof builtin_webp},
    };
    conf tight = limits;
    int refused = 0;
    (void)state;
    tight.image_input_pixels = 1 << 20; /* damaged sides must not cost gigabytes */
    for (size_t k = 0; k < sizeof files / sizeof *files; k++) {
        uint8_t *copy = malloc(files[k].size);
        assert_non_null(copy);
        memcpy(copy, files[k].data, files[k].size);
        for (size_t i = 0; i < files[k].size; i++) {
            image im;
            copy[i] ^= (uint8_t)(1 << i % 8);
            if (image_decode(span_of(copy, files[k].size), "bad", &tight, &pixels, &im) != ST_OK)
                refused++;
            else
                assert_true((int64_t)im.width * im.height <= 1 << 20);
            copy[i] ^= (uint8_t)(1 << i % 8);
            arena_reset(&pixels);
        }
        free(copy);
    }
    assert_true(refused > 250); /* every byte of the PNG is protected by a CRC */
}

static void test_image_decode__limits(void **state)
{
    const span jpeg = span_of(builtin_jpeg, sizeof builtin_jpeg);
    conf tight = limits;
    image im;
    image_info info;
    (void)state;
    tight.image_input_pixels = 20 * 14;
    assert_ok(image_header(jpeg, "a.jpg", &tight, &info));
    assert_int_equal(info.width, 20);
    assert_int_equal(info.height, 14);
    assert_string_equal(info.format, "jpeg");
    tight.image_input_pixels--;
    assert_fails(ST_BAD_INPUT, image_header(jpeg, "a.jpg", &tight, &info), "image.input_pixels");
    assert_fails(ST_BAD_INPUT, image_decode(jpeg, "a.jpg", &tight, &pixels, &im), "20 x 14");
    tight = limits;
    tight.image_file_bytes = sizeof builtin_jpeg - 1;
    assert_fails(ST_BAD_INPUT, image_header(jpeg, "a.jpg", &tight, &info), "image.file_bytes");
    assert_fails(ST_BAD_INPUT, image_header(span_of("", 0), "a.jpg", &limits, &info), "is empty");
    arena small;
    arena_init(&small, 64);
    assert_fails(ST_NO_MEMORY, image_decode(jpeg, "a.jpg", &limits, &small, &im), "");
    arena_done(&small);
}

static void test_image_decode__names_other_formats(void **state)
{
    static const struct {
        const char *bytes, *words;
        size_t size;
    } cases[] = {
        {"GIF89a.......", "GIF", 13},
        {"BM............", "BMP", 14},
        {"II*\0........", "TIFF", 12},
        {"\0\0\0\x20"
         "ftypheic....",
         "HEIF", 16},
        {"\0\0\0\x20"
         "ftypavif....",
         "AVIF", 16},
        {"%PDF-1.7", "PDF", 8},
        {"\xef\xbb\xbf <?xml version='1.0'?><SVG xmlns=''>", "SVG", 38},
        {"<!DOCTYPE html><html>404", "HTML", 24},
        {"version https://git-lfs.github.com", "Git LFS", 34},
        {"x", "first bytes are 78 00", 1},
    };
    image_info info;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_fails(ST_BAD_INPUT,
                     image_header(span_of(cases[i].bytes, cases[i].size), "a.jpg", &limits, &info),
                     cases[i].words);
}

static void test_image_write__is_read_back(void **state)
{
    enum { SIDE = 48 };
    uint8_t rgb[SIDE * SIDE * 3];
    image in = {SIDE, SIDE, rgb}, out;
    uint8_t *file = NULL;
    size_t size = 0;
    int worst = 0;
    (void)state;
    for (int i = 0; i < SIDE * SIDE * 3; i++)
        rgb[i] = (uint8_t)(40 + i / (SIDE * 3) * 2 + i % (SIDE * 3) / 3 + 20 * (i % 3));
    assert_ok(image_write_jpeg(&in, 95, &file, &size));
    assert_ok(image_decode(span_of(file, size), "memory", &limits, &pixels, &out));
    assert_int_equal(out.width, SIDE);
    for (int i = 0; i < SIDE * SIDE * 3; i++)
        worst = abs(out.rgb[i] - rgb[i]) > worst ? abs(out.rgb[i] - rgb[i]) : worst;
    assert_in_range(worst, 0, 8);
    free(file);
    assert_ok(image_write_png(&in, &file, &size));
    assert_ok(image_decode(span_of(file, size), "memory", &limits, &pixels, &out));
    assert_int_equal(out.width, SIDE);
    assert_memory_equal(out.rgb, rgb, sizeof rgb);
    free(file);

    image resized;
    assert_ok(image_resize_vips(&in, 32, 64, &pixels, &resized));
    assert_int_equal(resized.width, 64);
    assert_int_equal(resized.height, 32);
    assert_in_range(abs(resized.rgb[(16 * 64 + 32) * 3] - rgb[(24 * SIDE + 24) * 3]), 0, 4);
    arena_reset(&pixels);
}

static void test_image_fingerprint__is_that_of_this_decoder(void **state)
{
    hash128 first, second;
    char text[HASH_TEXT];
    (void)state;
    assert_ok(image_fingerprint(&first));
    assert_ok(image_fingerprint(&second));
    assert_true(hash_equal(first, second));
    hash_print(first, text); /* the hash of what Pillow 9.4 decodes */
    assert_string_equal(text, "da229a1860b969b16082cc8ec42954d6");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_image_decode__golden),
        cmocka_unit_test(test_image_decode__refuses_every_cut),
        cmocka_unit_test(test_image_decode__refuses_a_chunk_longer_than_the_file),
        cmocka_unit_test(test_image_decode__survives_damage),
        cmocka_unit_test(test_image_decode__limits),
        cmocka_unit_test(test_image_decode__names_other_formats),
        cmocka_unit_test(test_image_write__is_read_back),
        cmocka_unit_test(test_image_fingerprint__is_that_of_this_decoder),
    };
    return cmocka_run_group_tests(tests, setup_images, teardown_images);
}
