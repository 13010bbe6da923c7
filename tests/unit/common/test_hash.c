/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of hash.h: the digest of no bytes is the published one, hashing in pieces equals hashing at
 * once, the text form is read back and other texts are refused, and a file has the digest of its
 * bytes. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"

static void test_bytes__no_bytes_have_the_published_digest(void **state)
{
    (void)state;
    char text[HASH_TEXT];
    hash_print(hash_bytes("", 0), text);
    assert_string_equal(text, "99aa06d3014798d86001c324468d497f"); /* as xxhsum -H2 prints it */
}

static void test_streaming__equals_one_shot(void **state)
{
    (void)state;
    uint8_t data[5000];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 131 >> 3);
    hasher *hash = NULL;
    assert_ok(hasher_new(&hash));
    for (size_t at = 0, length = 1; at < sizeof data; at += length, length = length * 2 % 1001 + 1)
        hasher_add(hash, data + at, length < sizeof data - at ? length : sizeof data - at);
    assert_true(hash_equal(hasher_value(hash), hash_bytes(data, sizeof data)));
    hasher_reset(hash);
    hasher_add_u64(hash, UINT64_C(0x0807060504030201));
    assert_true(hash_equal(hasher_value(hash), hash_bytes("\1\2\3\4\5\6\7\10", 8)));
    hasher_free(&hash);
    hasher_free(&hash);
    assert_null(hash);
}

static void test_text__is_read_back_and_others_are_refused(void **state)
{
    (void)state;
    char text[HASH_TEXT];
    hash128 digest = hash_bytes("abc", 3), back;
    hash_print(digest, text);
    assert_true(hash_parse(text, &back));
    assert_true(hash_equal(digest, back));
    text[31] = 'g';
    assert_false(hash_parse(text, &back));
    text[31] = 0;
    assert_false(hash_parse(text, &back));
    assert_false(hash_parse("", &back));
    hash128 other = hash_bytes("abd", 3);
    assert_false(hash_equal(hash_chain(digest, other), hash_chain(other, digest)));
}

static void test_file__equals_its_bytes(void **state)
{
    (void)state;
    char *folder = harness_temp(), path[4096];
    snprintf(path, sizeof path, "%s/x", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("hello", file);
    fclose(file);
    hash128 digest;
    assert_ok(hash_file(path, &digest));
    assert_true(hash_equal(digest, hash_bytes("hello", 5)));
    remove(path);
    assert_fails(ST_NO_INPUT, hash_file(path, &digest), path);
    harness_remove(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes__no_bytes_have_the_published_digest),
        cmocka_unit_test(test_streaming__equals_one_shot),
        cmocka_unit_test(test_text__is_read_back_and_others_are_refused),
        cmocka_unit_test(test_file__equals_its_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
