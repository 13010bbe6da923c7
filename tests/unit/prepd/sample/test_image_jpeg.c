/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of image_jpeg.c, which decodes plain JPEGs with libjpeg instead of libvips: which files it
 * takes, and that whole, cut and damaged files give the same pixels, the same warnings and the same
 * refusals, word for word. Letters: x, y a place in the picture. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include "prepd/sample/decode/image_builtin.h"
#include "prepd/sample/decode/image_jpeg.h"
#include "prepd/sample/patch.h"
#include "tests/harness.h"

static const conf direct = {
    .image_file_bytes = 1 << 28, .image_input_pixels = 1 << 23, .image_decoder = DECODER_AUTO};
static conf vips, strict; /* strict: as direct, with data.damaged refuse */
static arena pixels;
static int n_headers;   /* headers that were read without libvips */
static int n_by_rows;   /* pictures that were handed out in bands while they were decoded */
static int n_by_planes; /* the same, before their conversion to RGB */
static int n_warned;    /* pictures that were decoded with a warning */

static int setup_jpeg(void **state)
{
    (void)state;
    vips = direct;
    vips.image_decoder = DECODER_VIPS;
    strict = direct;
    strict.data_damaged = DAMAGED_REFUSE;
    arena_init(&pixels, 0);
    return image_library_init("test_image_jpeg") != ST_OK;
}

static int teardown_jpeg(void **state)
{
    (void)state;
    arena_done(&pixels);
    image_library_done();
    return 0;
}

static bool is_plain(span bytes)
{
    image im;
    bool done;
    assert_ok(image_jpeg_decode(bytes, &direct, NULL, &pixels, &im, &done));
    return done;
}

typedef struct taken {
    uint8_t *rgb; /* [height, width, 3] */
    int32_t width, band, next;
} taken;

static void copy_band(void *user, const uint8_t *rgb, int32_t y)
{
    taken *got = user;
    assert_int_equal(y, got->next);
    memcpy(got->rgb + (size_t)y * (size_t)got->width * 3, rgb,
           (size_t)got->band * (size_t)got->width * 3);
    got->next += got->band;
}

/* Converts rows of planes to what copy_band() would get. */
static void take_ycc(void *user, const uint8_t *const planes[3], int64_t stride, int32_t y)
{
    taken *got = user;
    assert_int_equal(y, got->next);
    for (int32_t line = 0; line < got->band; line++)
        for (int32_t x = 0; x < got->width; x++) {
            const int64_t at = line * stride + x;
            ycc_to_rgb(planes[0][at], planes[1][at], planes[2][at],
                       got->rgb + ((int64_t)(y + line) * got->width + x) * 3);
        }
    got->next += got->band;
    n_by_planes++;
}

/* Decoded in bands of several heights, the picture has the same pixels, or is handed out as a whole
 * after all. */
static void check_rows(span bytes, const char *name, const image *want)
{
    const size_t size = (size_t)want->width * (size_t)want->height * 3;
    const image_rows other = {want->height, want->width + 1, 1, copy_band, NULL, NULL};
    image im;
    assert_ok(image_decode_rows(bytes, name, &direct, &other, &pixels, &im));
    assert_non_null(im.rgb); /* a picture of another size is decoded whole */
    for (int32_t band = 1; band <= want->height; band++) {
        void *room;
        if (want->height % band != 0 ||
            (want->height > 48 && band != 16 && band != 32 && band != want->height))
            continue; /* of a photograph, three heights are enough */
        assert_ok(arena_alloc(&pixels, size, &room));
        taken got = {room, want->width, band, 0};
        const image_rows rows = {want->height, want->width, band, copy_band, NULL, &got};
        assert_ok(image_decode_rows(bytes, name, &direct, &rows, &pixels, &im));
        n_by_rows += !im.rgb;
        if (!im.rgb)
            assert_int_equal(got.next, want->height);
        assert_true(im.width == want->width && im.height == want->height);
        assert_memory_equal(im.rgb ? im.rgb : got.rgb, want->rgb, size);
        if (band % 8 != 0 && band > 1)
            continue; /* of the heights that are not whole blocks, one is enough */
        const image_rows planes = {want->height, want->width, band, copy_band, take_ycc, &got};
        memset(got.rgb, 0, size);
        got.next = 0;
        assert_ok(image_decode_rows(bytes, name, &direct, &planes, &pixels, &im));
        assert_memory_equal(im.rgb ? im.rgb : got.rgb, want->rgb, size);
    }
}

static void check_header(span bytes, const char *name)
{
    image_info first, second;
    char text[1024];
    int32_t width, height;
    const status st = image_header(bytes, name, &vips, &first);
    snprintf(text, sizeof text, "%s", st == ST_OK ? "" : status_text());
    if (image_header(bytes, name, &direct, &second) != st)
        fail_msg("%s: libvips says %d of its header (%s), the direct way says otherwise", name,
                 (int)st, text);
    if (st != ST_OK)
        assert_string_equal(status_text(), text);
    else if (first.width != second.width || first.height != second.height ||
             strcmp(first.format, second.format) != 0)
        fail_msg("%s: %d x %d, libvips says %d x %d", name, second.width, second.height,
                 first.width, first.height);
    n_headers += image_jpeg_header(bytes, &direct, &width, &height);
}

/* A warning of libjpeg about damage is handed out with the pixels by both decoders, and with
 * data.damaged refuse it is a failure. */
static void check_warning(span bytes, const char *name, const image *first, const image *second)
{
    image im;
    if (!first->warning != !second->warning ||
        (first->warning && strcmp(first->warning, second->warning) != 0))
        fail_msg("%s: warned of \"%s\" and \"%s\"", name, first->warning, second->warning);
    n_warned += first->warning != NULL;
    if (!first->warning) {
        assert_ok(image_decode(bytes, name, &strict, &pixels, &im));
        return;
    }
    assert_fails(ST_BAD_INPUT, image_decode(bytes, name, &strict, &pixels, &im),
                 "data.damaged is refuse");
    assert_non_null(strstr(status_text(), first->warning));
}

/* Both decoders must give the same result. True if the result is pixels. */
static bool check_same(span bytes, const char *name)
{
    image first, second;
    char text[1024];
    check_header(bytes, name);
    const status st = image_decode(bytes, name, &vips, &pixels, &first);
    snprintf(text, sizeof text, "%s", st == ST_OK ? "" : status_text());
    if (image_decode(bytes, name, &direct, &pixels, &second) != st)
        fail_msg("%s: libvips says %d (%s), the direct way says otherwise", name, (int)st, text);
    if (st != ST_OK)
        assert_string_equal(status_text(), text);
    else if (first.width != second.width || first.height != second.height ||
             memcmp(first.rgb, second.rgb, (size_t)first.width * (size_t)first.height * 3) != 0)
        fail_msg("%s: other pixels", name);
    else
        check_rows(bytes, name, &first);
    if (st == ST_OK)
        check_warning(bytes, name, &first, &second);
    arena_reset(&pixels);
    return st == ST_OK;
}

/* Makes a JPEG with as much structure as a photograph; the caller releases it. */
static span make_jpeg(int32_t width, int32_t height, int quality)
{
    uint8_t *rgb = malloc((size_t)width * (size_t)height * 3), *jpeg;
    size_t size;
    assert_non_null(rgb);
    for (int32_t y = 0; y < height; y++)
        for (int32_t x = 0; x < width; x++)
            for (int32_t channel = 0; channel < 3; channel++)
                rgb[(y * width + x) * 3 + channel] =
                    (uint8_t)(3 * x + 7 * y + 41 * channel + 5 * ((x * y) % 11) +
                              ((x >> 3) ^ y) * 9);
    const image im = {width, height, rgb};
    assert_ok(image_write_jpeg(&im, quality, &jpeg, &size));
    free(rgb);
    return span_of(jpeg, size);
}

/* Makes a JPEG of noise with libjpeg. Its luma has horizontal times as many samples across and
 * vertical times as many down as its colours; libvips can write only 2 x 2 and 1 x 1. With
 * restarts, a mark follows each group of blocks. The caller releases it. */
static span make_noise(int side, int horizontal, int vertical, bool restarts)
{
    struct jpeg_compress_struct maker;
    struct jpeg_error_mgr errors;
    uint8_t line[256 * 3], *out = NULL;
    unsigned long size = 0;
    uint32_t seed = 1;
    maker.err = jpeg_std_error(&errors);
    jpeg_create_compress(&maker);
    jpeg_mem_dest(&maker, &out, &size);
    maker.image_width = maker.image_height = (JDIMENSION)side;
    maker.input_components = 3;
    maker.in_color_space = JCS_RGB;
    jpeg_set_defaults(&maker);
    maker.comp_info[0].h_samp_factor = horizontal;
    maker.comp_info[0].v_samp_factor = vertical;
    maker.restart_interval = restarts;
    jpeg_start_compress(&maker, TRUE);
    for (int y = 0; y < side; y++) {
        JSAMPROW row = line;
        for (size_t i = 0; i < sizeof line; i++)
            line[i] = (uint8_t)((seed = seed * 1664525 + 1013904223) >> 24);
        jpeg_write_scanlines(&maker, &row, 1);
    }
    jpeg_finish_compress(&maker);
    jpeg_destroy_compress(&maker);
    return span_of(out, size);
}

/* A copy of the file with this many EXIF blocks of this orientation after its first marker; the
 * caller releases it. */
static span with_exif(span jpeg, uint8_t orientation, int times)
{
    const uint8_t exif[] = {0xFF, 0xE1, 0, 34, 'E', 'x',         'i', 'f', 0, 0,    'M', 'M',
                            0,    '*',  0, 0,  0,   8,           0,   1,   1, 0x12, 0,   3,
                            0,    0,    0, 1,  0,   orientation, 0,   0,   0, 0,    0,   0};
    uint8_t *out = malloc(jpeg.size + (size_t)times * sizeof exif);
    assert_non_null(out);
    memcpy(out, jpeg.data, 2);
    for (int i = 0; i < times; i++)
        memcpy(out + 2 + (size_t)i * sizeof exif, exif, sizeof exif);
    memcpy(out + 2 + (size_t)times * sizeof exif, jpeg.data + 2, jpeg.size - 2);
    return span_of(out, jpeg.size + (size_t)times * sizeof exif);
}

static void release(span bytes)
{
    free((void *)(uintptr_t)bytes.data);
}

static void test_image_jpeg__sizes_and_sampling(void **state)
{
    (void)state;
    assert_true(is_plain(span_of(builtin_jpeg, sizeof builtin_jpeg)));
    for (int32_t side = 1; side < 40; side++) {
        for (int quality = 60; quality <= 95;
             quality += 35) { /* libvips writes 4:2:0 below quality 90 and 4:4:4 from there on */
            const span bytes = make_jpeg(side, 41 - side, quality);
            assert_true(is_plain(bytes));
            n_by_rows = n_by_planes = 0;
            assert_true(check_same(bytes, "made.jpg"));
            assert_true(n_by_rows >= 1); /* at least as one band of all rows */
            assert_int_equal(n_by_planes > 0, quality >= 90 && (41 - side) % 8 == 0);
            release(bytes);
        }
    }
}

static void test_image_jpeg__planes_only_if_of_full_size(void **state)
{
    (void)state;
    for (int horizontal = 1; horizontal <= 2; horizontal++) {
        for (int vertical = 1; vertical <= 2; vertical++) {
            const span bytes = make_noise(32, horizontal, vertical, false);
            n_by_planes = 0;
            assert_true(is_plain(bytes));
            assert_true(check_same(bytes, "sampled.jpg"));
            assert_int_equal(n_by_planes > 0, horizontal * vertical == 1);
            release(bytes);
        }
    }
}

static void test_image_jpeg__is_turned_as_by_libvips(void **state)
{
    (void)state;
    const span bytes = make_jpeg(37, 23, 80);
    for (uint8_t orientation = 0; orientation < 10; orientation++) {
        const span turned = with_exif(bytes, orientation, 1),
                   twice = with_exif(bytes, orientation, 2);
        assert_true(is_plain(turned));
        assert_true(check_same(turned, "turned.jpg"));
        assert_false(is_plain(twice)); /* two blocks: libvips decides which one counts */
        assert_true(check_same(twice, "twice.jpg"));
        release(turned);
        release(twice);
    }
    release(bytes);
}

/* Cuts the file at every length (every seventh after 700 bytes) and flips bits of every step-th
 * byte. */
static void cut_and_damaged(span bytes, size_t step)
{
    uint8_t *copy = malloc(bytes.size);
    int whole = 0, plain = 0;
    n_headers = n_warned = 0;
    assert_non_null(copy);
    for (size_t count = 0; count < bytes.size; count += count < 700 ? 1 : 7) {
        /* the exact size, so that a sanitizer sees a read beyond it */
        uint8_t *cut = malloc(count ? count : 1);
        assert_non_null(cut);
        memcpy(cut, bytes.data, count);
        assert_false(check_same(span_of(cut, count), "cut.jpg"));
        free(cut);
    }
    memcpy(copy, bytes.data, bytes.size);
    for (size_t i = 0; i < bytes.size; i += step) {
        for (int bit = i < 700 ? 0 : (int)(i % 8); bit < 8; bit += i < 700 ? 1 : 8) {
            copy[i] ^= (uint8_t)(1 << bit);
            whole += check_same(span_of(copy, bytes.size), "damaged.jpg");
            plain += is_plain(span_of(copy, bytes.size));
            copy[i] ^= (uint8_t)(1 << bit);
            arena_reset(&pixels);
        }
    }
    assert_true(n_headers >= plain);
    assert_true(n_warned > 100 && n_warned < whole);
    assert_true(whole > 1000 / (int)step && plain > 500 / (int)step &&
                plain < whole); /* both decoders were used */
    free(copy);
}

static void test_image_jpeg__cut_and_damaged_files_as_with_libvips(void **state)
{
    (void)state;
    const span upright = make_jpeg(61, 45, 85), turned = with_exif(upright, 6, 1);
    const span full = make_jpeg(21, 8, 92); /* 4:4:4 */
    cut_and_damaged(upright, 5);
    cut_and_damaged(turned, 1);
    n_by_planes = 0;
    cut_and_damaged(full, 5);
    assert_true(n_by_planes > 100);
    release(full);
    release(upright);
    release(turned);
}

/* Each kind of damage that still decodes comes with a warning, and the next whole file without
 * one. */
static void test_image_jpeg__damage_gives_a_warning(void **state)
{
    (void)state;
    static const char premature[] = "Corrupt JPEG data: premature end of data segment";
    const span bytes = make_jpeg(160, 120, 85);
    uint8_t *copy = malloc(bytes.size);
    image im;
    assert_non_null(copy);
    const uint8_t *sof = memmem(bytes.data, bytes.size, "\xff\xc0", 2);
    assert_non_null(sof);
    enum { HALF_AND_END, PAGE, TAIL, CLAIMS, N_KINDS };
    for (int kind = 0; kind < N_KINDS; kind++) {
        memcpy(copy, bytes.data, bytes.size);
        size_t size = bytes.size;
        if (kind == HALF_AND_END) {
            size = bytes.size / 2;
            memcpy(copy + size - 2, "\xff\xd9", 2);
        } else if (kind == PAGE) {
            memset(copy + bytes.size / 2, 0, bytes.size / 8);
        } else if (kind == TAIL) {
            memset(copy + bytes.size * 3 / 4, 0, bytes.size / 4);
            memcpy(copy + size - 2, "\xff\xd9", 2);
        } else {
            copy[sof - bytes.data + 5] = 2; /* the header claims 120 + 512 lines */
        }
        check_same(span_of(copy, size), "damaged.jpg");
        assert_ok(image_decode(span_of(copy, size), "damaged.jpg", &direct, &pixels, &im));
        assert_non_null(im.warning);
        if (kind == PAGE || kind == TAIL ? !strstr(im.warning, "Corrupt JPEG data: ")
                                         : strcmp(im.warning, premature) != 0)
            fail_msg("kind %d: %s", kind, im.warning);
    }
    const span marked = make_noise(256, 1, 1, true);
    memcpy((uint8_t *)(uintptr_t)marked.data + marked.size / 2, "\xff\xd9", 2);
    /* 512 groups of blocks are missing */
    const span half = span_of(marked.data, marked.size / 2 + 2);
    assert_true(check_same(half, "without restarts.jpg"));
    assert_ok(image_decode(half, "without restarts.jpg", &direct, &pixels, &im));
    assert_non_null(im.warning);
    release(marked);
    assert_ok(image_decode(bytes, "whole.jpg", &direct, &pixels, &im));
    assert_null(im.warning); /* nothing is left of the warning before */
    assert_ok(image_decode(bytes, "whole.jpg", &vips, &pixels, &im));
    assert_null(im.warning);
    release(bytes);
    free(copy);
}

static int64_t check_folder(const char *relative, int64_t *inout_plain)
{
    char *folder = harness_shared(relative), path[4096];
    int64_t files = 0;
    if (!folder)
        HARNESS_SKIP("no shared pictures");
    DIR *listing = opendir(folder);
    assert_non_null(listing);
    for (struct dirent *entry; (entry = readdir(listing));) {
        if (!strstr(entry->d_name, ".jp"))
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        FILE *file = fopen(path, "rb");
        assert_non_null(file);
        fseek(file, 0, SEEK_END);
        const size_t size = (size_t)ftell(file);
        uint8_t *data = malloc(size + 1);
        assert_non_null(data);
        rewind(file);
        assert_int_equal(fread(data, 1, size, file), size);
        fclose(file);
        check_same(span_of(data, size), entry->d_name);
        *inout_plain += is_plain(span_of(data, size));
        arena_reset(&pixels);
        free(data);
        files++;
    }
    closedir(listing);
    free(folder);
    return files;
}

static void test_image_jpeg__shared_pictures(void **state)
{
    int64_t odd = 0, coco = 0, extra = 0;
    (void)state;
    const int64_t n_odd = check_folder("data/odd", &odd);
    n_by_planes = 0;
    const int64_t n_coco = check_folder("data/vqav2/images/train2014", &coco);
    const int64_t n_extra = check_folder("data/images-extra", &extra);
    assert_true(odd > 5 && odd < n_odd - 5);
    assert_true(n_coco > 20 && coco >= n_coco - 1);
    assert_true(n_extra > 20 && extra >= n_extra - 1);
    assert_true(n_by_planes > 20); /* pictures of COCO store all planes at full size */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_image_jpeg__sizes_and_sampling),
        cmocka_unit_test(test_image_jpeg__planes_only_if_of_full_size),
        cmocka_unit_test(test_image_jpeg__is_turned_as_by_libvips),
        cmocka_unit_test(test_image_jpeg__damage_gives_a_warning),
        cmocka_unit_test(test_image_jpeg__cut_and_damaged_files_as_with_libvips),
        cmocka_unit_test(test_image_jpeg__shared_pictures),
    };
    return cmocka_run_group_tests(tests, setup_jpeg, teardown_jpeg);
}
