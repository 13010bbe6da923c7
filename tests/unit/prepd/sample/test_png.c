/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of png.h: walking over the chunks of a PNG, chunks that claim more bytes than there are,
 * compressed texts that would inflate too far, and the transparent colour. */
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "prepd/sample/decode/png.h"
#include "tests/harness.h"

static const size_t SLACK = 64 * 1024;

typedef struct file {
    uint8_t *at;
    size_t size, room;
} file;

static void append_bytes(file *out, const void *bytes, size_t size)
{
    assert_true(out->size + size <= out->room);
    if (size)
        memcpy(out->at + out->size, bytes, size);
    out->size += size;
}

static void put_chunk(file *out, const char *type, const void *data, uint32_t length)
{
    const uint8_t size[4] = {(uint8_t)(length >> 24), (uint8_t)(length >> 16),
                             (uint8_t)(length >> 8), (uint8_t)length};
    append_bytes(out, size, 4);
    append_bytes(out, type, 4);
    append_bytes(out, data, length);
    append_bytes(out, "crc?", 4); /* the checksum is not looked at here */
}

static void begin_png(file *out)
{
    static const uint8_t head[13] = {0, 0, 0, 8, 0, 0, 0, 8, 8, 2};
    out->size = 0;
    append_bytes(out, "\x89PNG\r\n\x1a\n", 8);
    put_chunk(out, "IHDR", head, sizeof head);
}

static void end_png(file *out)
{
    put_chunk(out, "IDAT", "", 0);
    put_chunk(out, "IEND", "", 0);
}

/* Writes a text chunk of length bytes after this head, compressed or not. */
static void put_text(file *out, const char *type, const void *head, size_t n_head, size_t length,
                     bool pressed)
{
    uint8_t *text = malloc(length + 1), *data = malloc(n_head + length + SLACK);
    uLongf size = (uLongf)(length + SLACK);
    assert_non_null(text);
    assert_non_null(data);
    memset(text, 'x', length + 1);
    memcpy(data, head, n_head);
    if (pressed) {
        assert_int_equal(compress2(data + n_head, &size, text, length, 9), Z_OK);
    } else {
        memcpy(data + n_head, text, length);
        size = length;
    }
    put_chunk(out, type, data, (uint32_t)(n_head + size));
    free(text);
    free(data);
}

static file new_file(void)
{
    file out = {.at = malloc(4 * (size_t)PNG_TEXT_BYTES), .room = 4 * (size_t)PNG_TEXT_BYTES};
    assert_non_null(out.at);
    begin_png(&out);
    return out;
}

static status check_texts(file *out, size_t room)
{
    /* A copy of the exact size, so that a sanitizer sees a read beyond it. */
    uint8_t *exact = malloc(out->size - room);
    assert_non_null(exact);
    memcpy(exact, out->at, out->size - room);
    status st = png_check_texts(span_of(exact, out->size - room), "a.png");
    free(exact);
    return st;
}

static void test_texts__up_to_the_limit(void **state)
{
    (void)state;
    static const struct {
        const char *type, *head;
        size_t n_head;
        bool pressed;
    } kinds[] = {
        {"zTXt", "Comment\0\0", 9, true}, {"iTXt", "Comment\0\1\0en\0Kommentar\0", 23, true},
        {"tEXt", "Comment\0", 8, false},  {"iTXt", "Comment\0\0\0\0\0", 12, false},
        {"zzZz", "Comment\0\0", 9, true}, /* not a text chunk */
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (int more = 0; more < 2; more++) {
            file out = new_file();
            put_text(&out, kinds[i].type, kinds[i].head, kinds[i].n_head,
                     (size_t)PNG_TEXT_BYTES + (size_t)more, kinds[i].pressed);
            end_png(&out);
            const bool refused = more && kinds[i].pressed && i != 4;
            assert_int_equal(check_texts(&out, 0), refused ? ST_BAD_INPUT : ST_OK);
            status_clear();
            free(out.at);
        }
}

static void test_texts__limit_of_all_together(void **state)
{
    (void)state;
    for (int size = 64; size <= 65; size++) {
        file out = new_file();
        for (int i = 0; i < size; i++)
            put_text(&out, "zTXt", "Comment\0\0", 9, PNG_TEXT_BYTES, true);
        end_png(&out);
        assert_int_equal(check_texts(&out, 0), size == 64 ? ST_OK : ST_BAD_INPUT);
        status_clear();
        free(out.at);
    }
}

static void test_texts__damaged_ones_are_left_to_libpng(void **state)
{
    (void)state;
    static const char *const damaged[] = {"", "Comment", "Comment\0", "Comment\0\1\0", "\0\0x"};
    static const uint8_t sizes[] = {0, 7, 8, 10, 3};
    static const char *const types[] = {"zTXt", "iTXt", "tEXt"};
    for (size_t i = 0; i < sizeof sizes; i++)
        for (size_t type = 0; type < sizeof types / sizeof *types; type++) {
            file out = new_file();
            put_chunk(&out, types[type], damaged[i], sizes[i]);
            assert_int_equal(check_texts(&out, 0), ST_OK);
            free(out.at);
        }
    file out = new_file();
    put_text(&out, "zTXt", "Comment\0\0", 9, PNG_TEXT_BYTES + 1, true);
    for (size_t cut = 5; cut + 32 < out.size; cut += 97) /* a text that is cut is not inflated */
        assert_int_equal(check_texts(&out, cut), ST_OK);
    free(out.at);
}

static void test_chunks__are_found_up_to_the_end(void **state)
{
    (void)state;
    file out = new_file();
    put_chunk(&out, "eXIf", "abc", 3);
    end_png(&out);
    const span whole = span_of(out.at, out.size);
    const span exif = png_find(whole, "eXIf");
    assert_int_equal(exif.size, 3);
    assert_memory_equal(exif.data, "abc", 3);
    assert_int_equal(png_find(whole, "gAMA").size, 0);
    assert_true(png_ends(whole) && png_reaches_pixels(whole));
    for (size_t cut = 1; cut < out.size; cut++) {
        const span part = span_of(out.at, out.size - cut);
        assert_false(png_ends(part));
        /* The last chunks are IDAT and IEND with 12 bytes each. To reach the pixels, the head of
         * IDAT is enough. */
        assert_int_equal(png_reaches_pixels(part), cut <= 12);
    }
    memset(out.at + 8 + 25, 0xFF, 4); /* eXIf claims 4 GiB */
    assert_false(png_reaches_pixels(whole));
    assert_int_equal(png_find(whole, "eXIf").size, 0);
    free(out.at);
}

/* The key is compared with pixels of 8 bits, as Pillow does (golden_images has a picture of each
 * case). */
static void test_key__only_of_grey_and_rgb_pictures(void **state)
{
    (void)state;
    static const struct {
        uint8_t depth, type;
        uint8_t trns[6], bytes;
        int key[3]; /* -1: there is none */
    } cases[] = {
        {8, 0, {0, 7}, 2, {7, 7, 7}},
        {8, 0, {1, 1}, 2, {1, 1, 1}}, /* of 257 the low byte counts */
        {16, 0, {1, 44}, 2, {44, 44, 44}},
        {1, 0, {0, 1}, 2, {255, 255, 255}},
        {1, 0, {2, 0}, 2, {255, 255, 255}},
        {1, 0, {0, 0}, 2, {0, 0, 0}},
        {4, 0, {0, 17}, 2, {17, 17, 17}},
        {8, 2, {0, 1, 0, 2, 0, 3}, 6, {1, 2, 3}},
        {16, 2, {9, 1, 8, 2, 7, 3}, 6, {1, 2, 3}},
        {8, 2, {0, 1, 0, 2}, 4, {-1}}, /* the chunk is cut short */
        {8, 0, {0}, 0, {-1}},          /* there is no such chunk */
        {8, 3, {0, 7}, 2, {-1}},
        {8, 4, {0, 7}, 2, {-1}},
        {8, 6, {0, 1, 0, 2, 0, 3}, 6, {-1}},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        uint8_t key[3] = {9, 9, 9};
        file out = new_file();
        out.at[24] = cases[k].depth;
        out.at[25] = cases[k].type;
        if (cases[k].bytes)
            put_chunk(&out, "tRNS", (const char *)cases[k].trns, cases[k].bytes);
        end_png(&out);
        const bool found = png_key(span_of(out.at, out.size), key);
        assert_int_equal(found, cases[k].key[0] >= 0);
        for (int channel = 0; found && channel < 3; channel++)
            assert_int_equal(key[channel], cases[k].key[channel]);
        free(out.at);
    }
    uint8_t key[3];
    assert_false(png_key(span_of("short", 5), key));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts__up_to_the_limit),
        cmocka_unit_test(test_texts__limit_of_all_together),
        cmocka_unit_test(test_texts__damaged_ones_are_left_to_libpng),
        cmocka_unit_test(test_chunks__are_found_up_to_the_end),
        cmocka_unit_test(test_key__only_of_grey_and_rgb_pictures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
