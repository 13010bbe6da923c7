/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of unpack.h: compressed files give the same bytes read forward and, from restart points, at
 * any place; damage and changes are noticed. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include "common/base/rng.h"
#include "prepd/dataset/unpack.h"

enum { TOTAL = 40 << 20, PROBES = 24 };

typedef enum form { PLAIN, ONE_MEMBER, MEMBERS, ONE_FRAME, FRAMES, N_FORMS } form;

/* Makes text that compresses to about a quarter. */
static uint8_t *make_bytes(void)
{
    uint8_t *data = malloc(TOTAL);
    const rng_key key = rng_key_make(harness_seed(), "bytes");
    assert_non_null(data);
    for (int64_t i = 0; i < TOTAL; i += 8) {
        uint64_t bits = rng_u64(key, (uint64_t)i);
        for (int k = 0; k < 8; k++, bits >>= 2)
            data[i + k] = (uint8_t)("etao"[bits & 3]);
    }
    return data;
}

static void put_gzip(FILE *file, const uint8_t *data, size_t count)
{
    z_stream zlib = {0};
    size_t room = count + count / 100 + 1000;
    uint8_t *out = malloc(room);
    assert_int_equal(deflateInit2(&zlib, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    zlib.next_in = (Bytef *)(uintptr_t)data;
    zlib.avail_in = (uInt)count;
    zlib.next_out = out;
    zlib.avail_out = (uInt)room;
    assert_int_equal(deflate(&zlib, Z_FINISH), Z_STREAM_END);
    assert_int_equal(fwrite(out, 1, room - zlib.avail_out, file), room - zlib.avail_out);
    deflateEnd(&zlib);
    free(out);
}

static void put_zstd(FILE *file, const uint8_t *data, size_t count)
{
    size_t room = ZSTD_compressBound(count);
    uint8_t *out = malloc(room);
    size_t size = ZSTD_compress(out, room, data, count, 1);
    assert_false(ZSTD_isError(size));
    assert_int_equal(fwrite(out, 1, size, file), size);
    free(out);
}

static void write_form(const char *path, const uint8_t *data, size_t total, form how)
{
    FILE *file = fopen(path, "wb");
    const size_t piece = how == MEMBERS || how == FRAMES ? total / 30 + 1 : total;
    assert_non_null(file);
    for (size_t at = 0; at < total; at += piece) {
        const size_t count = total - at < piece ? total - at : piece;
        if (how == PLAIN)
            assert_int_equal(fwrite(data + at, 1, count, file), count);
        else if (how == ONE_MEMBER || how == MEMBERS)
            put_gzip(file, data + at, count);
        else
            put_zstd(file, data + at, count);
    }
    fclose(file);
}

static void read_forward(unpack *file, const uint8_t *data, size_t total)
{
    static uint8_t some[300000];
    size_t at = 0, count;
    for (;;) {
        assert_ok(unpack_next(file, some, 1 + at % sizeof some, &count));
        if (count == 0)
            break;
        assert_true(at + count <= total);
        assert_memory_equal(some, data + at, count);
        at += count;
    }
    assert_int_equal(at, total);
}

static void test_unpack__same_bytes_forward_and_anywhere(void **state)
{
    (void)state;
    char *folder = harness_temp(), path[4096];
    uint8_t *data = make_bytes();
    static uint8_t got[100000];
    for (form how = PLAIN; how < N_FORMS; how++) {
        const rng_key key = rng_key_make(harness_seed(), "probes");
        unpack *file;
        snprintf(path, sizeof path, "%s/f%d", folder, (int)how);
        write_form(path, data, TOTAL, how);
        assert_ok(unpack_open(path, &file));
        read_forward(file, data, TOTAL);
        assert_int_equal(unpack_random(file), how == PLAIN);
        assert_int_equal(unpack_point(file, 0), 0);
        if (how == ONE_MEMBER || how == MEMBERS || how == FRAMES)
            assert_true(unpack_points(file) >= 4);
        else
            /* the end of a frame is a restart point */
            assert_in_range(unpack_points(file), 1, how == ONE_FRAME ? 2 : 1);
        assert_in_range(unpack_longest(file), how == PLAIN ? 0 : 1,
                        how == PLAIN       ? 0
                        : how == ONE_FRAME ? TOTAL
                                           : TOTAL / 3);
        assert_true(how != ONE_FRAME || unpack_longest(file) == TOTAL);
        const int probes = how == ONE_FRAME ? PROBES / 6 : PROBES;
        for (int k = 0; k < probes; k++) {
            const size_t at = rng_below(key, (uint64_t)k, TOTAL - sizeof got);
            if (k % 8 == 3)
                unpack_rest(file);
            assert_ok(unpack_at(file, (int64_t)at, got, sizeof got));
            assert_memory_equal(got, data + at, sizeof got);
        }
        assert_fails(ST_BAD_INPUT, unpack_at(file, TOTAL - 10, got, 11), "became shorter");
        unpack_close(&file);
    }
    free(data);
    harness_remove(&folder);
}

static status read_all(const char *path)
{
    static uint8_t some[4096];
    unpack *file;
    size_t count = 1;
    TRY(unpack_open(path, &file));
    status st = ST_OK;
    while (st == ST_OK && count)
        st = unpack_next(file, some, sizeof some, &count);
    unpack_close(&file);
    return st;
}

static void test_unpack__damage_is_refused(void **state)
{
    (void)state;
    char *folder = harness_temp(), path[4096];
    uint8_t *data = make_bytes();
    for (form how = ONE_MEMBER; how < N_FORMS; how++) {
        snprintf(path, sizeof path, "%s/f", folder);
        write_form(path, data, 1 << 20, how);
        FILE *stream = fopen(path, "rb");
        static uint8_t file[2 << 20];
        const size_t got = fread(file, 1, sizeof file, stream);
        fclose(stream);
        for (int k = 0; k < 3; k++) {
            stream = fopen(path, "wb");
            if (k == 0) { /* cut short */
                assert_int_equal(fwrite(file, 1, got - 5, stream), got - 5);
            } else if (k == 1) { /* followed by other bytes */
                fwrite(file, 1, got, stream);
                fwrite("rubbish behind it", 1, 17, stream);
            } else { /* padded with zeros, as on tapes */
                fwrite(file, 1, got, stream);
                fwrite("\0\0\0\0\0\0\0\0", 1, 8, stream);
            }
            fclose(stream);
            if (k == 0)
                assert_fails(ST_BAD_INPUT, read_all(path), "stops early");
            else if (k == 1)
                assert_fails(ST_BAD_INPUT, read_all(path), "data are damaged");
            else if (how == ONE_MEMBER || how == MEMBERS)
                assert_ok(read_all(path));
        }
    }
    assert_fails(ST_NO_INPUT, read_all("absent/file"), "cannot open");
    free(data);
    harness_remove(&folder);
}

static void test_unpack__a_changed_file_is_noticed(void **state)
{
    (void)state;
    char *folder = harness_temp(), path[4096];
    uint8_t some[64];
    unpack *file;
    snprintf(path, sizeof path, "%s/f", folder);
    write_form(path, (const uint8_t *)"some text", 9, ONE_MEMBER);
    assert_ok(unpack_open(path, &file));
    size_t count = 1;
    while (count)
        assert_ok(unpack_next(file, some, sizeof some, &count));
    unpack_rest(file);
    write_form(path, (const uint8_t *)"other text, longer", 18, ONE_MEMBER);
    assert_fails(ST_BAD_INPUT, unpack_at(file, 0, some, 4), "changed while");
    unpack_close(&file);
    harness_remove(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unpack__same_bytes_forward_and_anywhere),
        cmocka_unit_test(test_unpack__damage_is_refused),
        cmocka_unit_test(test_unpack__a_changed_file_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
