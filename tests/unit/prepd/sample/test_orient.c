/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of orient.h: the orientation of a picture is read from EXIF and from XMP texts, bad EXIF
 * data is survived, and each of the eight orientations is applied right. */
#include <stdlib.h>
#include <string.h>

#include "prepd/sample/decode/orient.h"
#include "tests/harness.h"

enum { MAX_EXIF = 64 };

/* Makes EXIF data with one entry, the orientation, of this type, count and value. */
static span make_exif(uint8_t *at, bool big_endian, int type, uint32_t count, uint32_t value)
{
    const uint8_t head[2][8] = {{'I', 'I', '*', 0, 8, 0, 0, 0}, {'M', 'M', 0, '*', 0, 0, 0, 8}};
    memset(at, 0, MAX_EXIF);
    memcpy(at, head[big_endian], 8);
    uint8_t *tags = at + 8;
    if (big_endian) {
        const uint8_t entry[] = {0, 1, 1, 0x12, 0, (uint8_t)type, 0, 0, 0, (uint8_t)count};
        memcpy(tags, entry, sizeof entry);
        tags[type == 3 ? 11 : 13] = (uint8_t)value;
    } else {
        const uint8_t entry[] = {1, 0, 0x12, 1, (uint8_t)type, 0, (uint8_t)count, 0, 0, 0};
        memcpy(tags, entry, sizeof entry);
        store_u32(tags + 10, value);
    }
    return span_of(at, 8 + 2 + 12 + 4);
}

static void test_orient_from_exif__both_byte_orders(void **state)
{
    uint8_t bytes[MAX_EXIF], prefixed[MAX_EXIF + 6];
    (void)state;
    for (int big = 0; big < 2; big++)
        for (uint32_t orientation = 1; orientation <= 8; orientation++) {
            const span exif = make_exif(bytes, big, 3, 1, orientation);
            assert_int_equal(orient_from_exif(exif), orientation);
            assert_int_equal(orient_from_exif(make_exif(bytes, big, 4, 1, orientation)),
                             orientation);
            /* a byte is not read */
            assert_int_equal(orient_from_exif(make_exif(bytes, big, 1, 1, orientation)), 1);
            /* the first value of a list */
            assert_int_equal(orient_from_exif(make_exif(bytes, big, 3, 2, orientation)),
                             orientation);
            /* an entry without values */
            assert_int_equal(orient_from_exif(make_exif(bytes, big, 3, 0, orientation)), 0);
            assert_int_equal(orient_from_exif(make_exif(bytes, big, 99, 1, orientation)), 0);
            assert_int_equal(orient_from_exif(make_exif(bytes, big, 3, 1, orientation + 8)), 1);
            memcpy(prefixed, "Exif\0\0", 6);
            memcpy(prefixed + 6, make_exif(bytes, big, 3, 1, orientation).data, MAX_EXIF);
            assert_int_equal(orient_from_exif(span_of(prefixed, exif.size + 6)), orientation);
        }
}

/* EXIF data cut at any byte or with any byte changed must not lead to a stray read, which a
 * sanitizer would see. */
static void test_orient_from_exif__survives_hostile_data(void **state)
{
    uint8_t bytes[MAX_EXIF];
    (void)state;
    for (int big = 0; big < 2; big++)
        for (uint32_t count = 0; count < 4; count++) {
            const span exif = make_exif(bytes, big, 3, count, 6);
            for (size_t length = 0; length <= exif.size; length++) {
                uint8_t *cut = malloc(length ? length : 1);
                assert_non_null(cut);
                memcpy(cut, exif.data, length);
                assert_in_range(orient_from_exif(span_of(cut, length)), 0, INT32_MAX);
                for (size_t i = 0; i < length; i++) {
                    cut[i] ^= 0xff;
                    assert_in_range(orient_from_exif(span_of(cut, length)), 0, INT32_MAX);
                    cut[i] ^= 0xff;
                }
                free(cut);
            }
        }
}

static void test_orient_from_texts(void **state)
{
    static const struct {
        const char *text;
        int wanted;
    } xmp[] = {
        {"<a tiff:Orientation=\"6\"/>", 6},
        {"<tiff:Orientation>3</tiff:Orientation>", 3},
        {"tiff:Orientation='3'", 0},
        {"tiff:Orientation=\"x\" tiff:Orientation=\"8\"", 8},
        {"tiff:Orientation", 0},
        {"tiff:Orientation=\"", 0},
        {"", 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof xmp / sizeof *xmp; i++)
        assert_int_equal(orient_from_xmp(span_of(xmp[i].text, strlen(xmp[i].text))), xmp[i].wanted);
    assert_int_equal(orient_from_raw_profile("\nexif\n 26\n49492a0008000000\n"
                                             "0100120103000100000005000000\n00000000\n"),
                     5);
    assert_int_equal(orient_from_raw_profile("\nexif\n 26\n49492a000800zz"), 0);
    assert_int_equal(orient_from_raw_profile("\nexif\n"), 0);
    assert_int_equal(orient_from_raw_profile(""), 0);
}

/* What each orientation makes of 2 x 3 letters was written down by hand. */
static void test_orient_apply__all_eight(void **state)
{
    static const char *const upright[] = {"",       "abcdef", "cbafed", "fedcba", "defabc",
                                          "adbecf", "daebfc", "fcebda", "cfbead"};
    uint8_t in[18], out[18];
    (void)state;
    for (int i = 0; i < 18; i++)
        in[i] = (uint8_t)("abcdef"[i / 3] + i % 3);
    for (int orientation = 1; orientation <= 8; orientation++) {
        orient_apply(orientation, in, 2, 3, out);
        for (int i = 0; i < 18; i++)
            assert_int_equal(out[i], upright[orientation][i / 3] + i % 3);
        assert_int_equal(orient_swaps_sides(orientation), orientation >= 5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_orient_from_exif__both_byte_orders),
        cmocka_unit_test(test_orient_from_exif__survives_hostile_data),
        cmocka_unit_test(test_orient_from_texts),
        cmocka_unit_test(test_orient_apply__all_eight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
