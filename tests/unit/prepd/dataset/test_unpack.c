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
    uint8_t *b = malloc(TOTAL);
    const rng_key key = rng_key_make(harness_seed(), "bytes");
    assert_non_null(b);
    for (int64_t i = 0; i < TOTAL; i += 8) {
        uint64_t v = rng_u64(key, (uint64_t)i);
        for (int k = 0; k < 8; k++, v >>= 2)
            b[i + k] = (uint8_t)("etao"[v & 3]);
    }
    return b;
}

static void put_gzip(FILE *f, const uint8_t *b, size_t n)
{
    z_stream z = {0};
    size_t room = n + n / 100 + 1000;
    uint8_t *out = malloc(room);
    assert_int_equal(deflateInit2(&z, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (Bytef *)(uintptr_t)b;
    z.avail_in = (uInt)n;
    z.next_out = out;
    z.avail_out = (uInt)room;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    assert_int_equal(fwrite(out, 1, room - z.avail_out, f), room - z.avail_out);
    deflateEnd(&z);
    free(out);
}

static void put_zstd(FILE *f, const uint8_t *b, size_t n)
{
    size_t room = ZSTD_compressBound(n);
    uint8_t *out = malloc(room);
    size_t size = ZSTD_compress(out, room, b, n, 1);
    assert_false(ZSTD_isError(size));
    assert_int_equal(fwrite(out, 1, size, f), size);
    free(out);
}

static void write_form(const char *path, const uint8_t *b, size_t total, form how)
{
    FILE *f = fopen(path, "wb");
    const size_t piece = how == MEMBERS || how == FRAMES ? total / 30 + 1 : total;
    assert_non_null(f);
    for (size_t at = 0; at < total; at += piece) {
        const size_t n = total - at < piece ? total - at : piece;
        if (how == PLAIN)
            assert_int_equal(fwrite(b + at, 1, n, f), n);
        else if (how == ONE_MEMBER || how == MEMBERS)
            put_gzip(f, b + at, n);
        else
            put_zstd(f, b + at, n);
    }
    fclose(f);
}

static void read_forward(unpack *u, const uint8_t *b, size_t total)
{
    static uint8_t some[300000];
    size_t at = 0, n;
    for (;;) {
        assert_ok(unpack_next(u, some, 1 + at % sizeof some, &n));
        if (n == 0)
            break;
        assert_true(at + n <= total);
        assert_memory_equal(some, b + at, n);
        at += n;
    }
    assert_int_equal(at, total);
}

static void test_unpack__same_bytes_forward_and_anywhere(void **state)
{
    (void)state;
    char *folder = harness_temp(), path[4096];
    uint8_t *b = make_bytes();
    static uint8_t got[100000];
    for (form how = PLAIN; how < N_FORMS; how++) {
        const rng_key key = rng_key_make(harness_seed(), "probes");
        unpack *u;
        snprintf(path, sizeof path, "%s/f%d", folder, (int)how);
        write_form(path, b, TOTAL, how);
        assert_ok(unpack_open(path, &u));
        read_forward(u, b, TOTAL);
        assert_int_equal(unpack_random(u), how == PLAIN);
        assert_int_equal(unpack_point(u, 0), 0);
        if (how == ONE_MEMBER || how == MEMBERS || how == FRAMES)
            assert_true(unpack_points(u) >= 4);
        else
            /* the end of a frame is a restart point */
            assert_in_range(unpack_points(u), 1, how == ONE_FRAME ? 2 : 1);
        assert_in_range(unpack_longest(u), how == PLAIN ? 0 : 1,
                        how == PLAIN       ? 0
                        : how == ONE_FRAME ? TOTAL
                                           : TOTAL / 3);
        assert_true(how != ONE_FRAME || unpack_longest(u) == TOTAL);
        const int probes = how == ONE_FRAME ? PROBES / 6 : PROBES;
        for (int k = 0; k < probes; k++) {
            const size_t at = rng_below(key, (uint64_t)k, TOTAL - sizeof got);
            if (k % 8 == 3)
                unpack_rest(u);
            assert_ok(unpack_at(u, (int64_t)at, got, sizeof got));
            assert_memory_equal(got, b + at, sizeof got);
        }
        assert_fails(ST_BAD_INPUT, unpack_at(u, TOTAL - 10, got, 11), "became shorter");
        unpack_close(&u);
    }
    free(b);
    harness_remove(&folder);
}

static status read_all(const char *path)
{
    static uint8_t some[4096];
    unpack *u;
    size_t n = 1;
    TRY(unpack_open(path, &u));
    status st = ST_OK;
    while (st == ST_OK && n)
        st = unpack_next(u, some, sizeof some, &n);
    unpack_close(&u);
    return st;
}

static void test_unpack__damage_is_refused(void **state)
{
    (void)state;
    char *folder = harness_temp(), path[4096];
    uint8_t *b = make_bytes();
    for (form how = ONE_MEMBER; how < N_FORMS; how++) {
        snprintf(path, sizeof path, "%s/f", folder);
        write_form(path, b, 1 << 20, how);
        FILE *f = fopen(path, "rb");
        static uint8_t file[2 << 20];
        const size_t n = fread(file, 1, sizeof file, f);
        fclose(f);
        for (int k = 0; k < 3; k++) {
            f = fopen(path, "wb");
            if (k == 0) { /* cut short */
                assert_int_equal(fwrite(file, 1, n - 5, f), n - 5);
            } else if (k == 1) { /* followed by other bytes */
                fwrite(file, 1, n, f);
                fwrite("rubbish behind it", 1, 17, f);
            } else { /* padded with zeros, as on tapes */
                fwrite(file, 1, n, f);
                fwrite("\0\0\0\0\0\0\0\0", 1, 8, f);
            }
            fclose(f);
            if (k == 0)
                assert_fails(ST_BAD_INPUT, read_all(path), "stops early");
            else if (k == 1)
                assert_fails(ST_BAD_INPUT, read_all(path), "data are damaged");
            else if (how == ONE_MEMBER || how == MEMBERS)
                assert_ok(read_all(path));
        }
    }
    assert_fails(ST_NO_INPUT, read_all("absent/file"), "cannot open");
    free(b);
    harness_remove(&folder);
}

static void test_unpack__a_changed_file_is_noticed(void **state)
{
    (void)state;
    char *folder = harness_temp(), path[4096];
    uint8_t some[64];
    unpack *u;
    snprintf(path, sizeof path, "%s/f", folder);
    write_form(path, (const uint8_t *)"some text", 9, ONE_MEMBER);
    assert_ok(unpack_open(path, &u));
    size_t n = 1;
    while (n)
        assert_ok(unpack_next(u, some, sizeof some, &n));
    unpack_rest(u);
    write_form(path, (const uint8_t *)"other text, longer", 18, ONE_MEMBER);
    assert_fails(ST_BAD_INPUT, unpack_at(u, 0, some, 4), "changed while");
    unpack_close(&u);
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
