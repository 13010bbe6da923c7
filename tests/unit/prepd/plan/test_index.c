/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of index.h: what is put into the index is found again, in memory and in its file, and a
 * damaged file is refused. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "prepd/plan/index.h"

static const hash128 KEY = {{1, 2, 3}};

static data_index *unsealed_index(int64_t mtime_ns, int backwards, int32_t last_tokens)
{
    data_index *index;
    static const char *const causes[] = {"bad sample", NULL};
    assert_ok(index_new(3, 2, &index));
    index_image good = {12345, mtime_ns, 640, 480, NULL, 147, 23.976};
    index_image bad = {0, 0, 7, 7, "gone", 0, 0};
    assert_ok(index_put_image(index, backwards ? 0 : 1, backwards ? &good : &bad));
    assert_ok(index_put_image(index, backwards ? 1 : 0, backwards ? &bad : &good));
    for (int k = 0; k < 3; k++) {
        int i = backwards ? 2 - k : k;
        index_sample record = {i == 2 ? last_tokens : 10 + i, i, i == 1 ? causes[0] : NULL};
        assert_ok(index_put_sample(index, i, &record));
    }
    return index;
}

static data_index *make_index(int64_t mtime_ns, int backwards, int32_t last_tokens)
{
    data_index *index = unsealed_index(mtime_ns, backwards, last_tokens);
    index_identify(index, (hash128){{9}});
    assert_ok(index_seal(index));
    return index;
}

static void check_index(const data_index *index)
{
    index_image im;
    index_sample record;
    assert_int_equal(index_samples(index), 3);
    assert_int_equal(index_images(index), 2);
    index_image_get(index, 0, &im);
    assert_int_equal(im.file_bytes, 12345);
    assert_int_equal(im.mtime_ns, 77);
    assert_int_equal(im.frames, 147);
    assert_true(im.fps == 23.976);
    assert_int_equal(im.width, 640);
    assert_int_equal(im.height, 480);
    assert_null(im.cause);
    index_image_get(index, 1, &im);
    assert_int_equal(im.width, 0);
    assert_string_equal(im.cause, "gone");
    index_sample_get(index, 1, &record);
    assert_string_equal(record.cause, "bad sample");
    index_sample_get(index, 2, &record);
    assert_int_equal(record.text_tokens, 12);
    assert_int_equal(record.targets, 2);
    assert_null(record.cause);
}

static void test_index__is_read_back_from_the_file(void **state)
{
    (void)state;
    char *root = harness_temp(), path[1024];
    snprintf(path, sizeof path, "%s/index.tsx", root);
    data_index *first = make_index(77, 0, 12), *second;
    hash128 other = {{5}};
    check_index(first);
    assert_fails(ST_NO_INPUT, index_load(path, KEY, &second), path);
    assert_ok(index_save(first, path, KEY));
    assert_ok(index_load(path, KEY, &second));
    check_index(second);
    assert_true(hash_equal(index_digest(first), index_digest(second)));
    assert_ok(index_save(second, path, KEY)); /* it replaces the file that it is mapped from */
    check_index(second);
    index_free(&second);
    assert_fails(ST_BAD_INPUT, index_load(path, other, &second), "other options");
    index_free(&first);
    assert_null(first);
    harness_remove(&root);
}

/* The digest after index_mix is that of an index built with these weights, because cursors of older
 * versions, which built one, have that digest. */
static void test_index__mixing_equals_building_with_weights(void **state)
{
    (void)state;
    char *root = harness_temp(), path[300];
    snprintf(path, sizeof path, "%s/index.tsx", root);
    const hash128 weighted = {{7}};
    data_index *first = make_index(77, 0, 12), *second, *third;
    const hash128 contents = index_digest(first);
    assert_ok(index_mix(first, weighted));
    assert_false(hash_equal(index_digest(first), contents));
    assert_true(hash_equal(index_contents(first), contents));
    assert_ok(index_save(first, path, KEY));
    assert_ok(index_load(path, KEY, &second)); /* the weights are not in the file */
    assert_true(hash_equal(index_digest(second), contents));
    assert_ok(index_mix(second, weighted));
    assert_true(hash_equal(index_digest(first), index_digest(second)));
    third = unsealed_index(77, 0, 12);
    index_identify(third, weighted);
    assert_ok(index_seal(third));
    assert_true(hash_equal(index_digest(third), index_digest(second)));
    index_free(&first);
    index_free(&second);
    index_free(&third);
    harness_remove(&root);
}

static void test_index__digest_depends_on_contents_only(void **state)
{
    (void)state;
    data_index *first = make_index(77, 0, 12), *second = make_index(99, 1, 12),
               *third = make_index(77, 0, 13);
    assert_true(hash_equal(index_digest(first), index_digest(second)));
    assert_false(hash_equal(index_digest(first), index_digest(third)));
    index_free(&first);
    index_free(&second);
    index_free(&third);
}

static void test_index__refuses_wrong_records(void **state)
{
    (void)state;
    data_index *index;
    assert_ok(index_new(2, 1, &index));
    assert_fails(ST_BAD_INPUT, index_put_sample(index, 2, &(index_sample){1, 1, NULL}), "2 of 2");
    assert_fails(ST_BAD_INPUT, index_put_sample(index, 0, &(index_sample){4, 5, NULL}),
                 "5 of them");
    assert_fails(ST_BAD_INPUT, index_put_image(index, 0, &(index_image){1, 1, 0, 4, NULL, 0, 0}),
                 "0 x 4");
    assert_ok(index_put_sample(index, 0, &(index_sample){4, 4, NULL}));
    assert_fails(ST_INTERNAL, index_seal(index), "lacks 2 of 3");
    index_free(&index);
}

/* An index with three samples, of which the second is refused. */
static data_index *with_beginnings(void)
{
    data_index *index;
    assert_ok(index_new(3, 0, &index));
    assert_fails(ST_BAD_INPUT, index_put_beginning(index, 0, &(index_beginning){0, 0, 0, 1}), "0");
    assert_ok(index_take_beginnings(index));
    for (int i = 0; i < 3; i++) {
        const index_sample record = {10, 2, i == 1 ? "bad" : NULL};
        const index_beginning good = {i, i ? 7 - i : 0, 3, 8}, none = {0};
        assert_false(index_has_sample(index, i));
        assert_ok(index_put_sample(index, i, &record));
        assert_true(index_has_sample(index, i));
        assert_ok(index_put_beginning(index, i, i == 1 ? &none : &good));
    }
    return index;
}

static void check_beginning(const data_index *index, int64_t place, index_beginning wanted)
{
    index_beginning is;
    index_beginning_get(index, place, &is);
    assert_int_equal(is.before, wanted.before);
    assert_int_equal(is.agrees, wanted.agrees);
    assert_int_equal(is.head, wanted.head);
    assert_int_equal(is.first_label, wanted.first_label);
}

static void test_beginnings__are_read_back_and_enter_the_digest(void **state)
{
    (void)state;
    char *root = harness_temp(), path[300];
    snprintf(path, sizeof path, "%s/index.tsx", root);
    data_index *first = with_beginnings(), *second, *third = with_beginnings();
    assert_ok(index_put_beginning(third, 2, &(index_beginning){2, 6, 3, 8}));
    assert_ok(index_seal(first));
    assert_ok(index_seal(third));
    assert_false(hash_equal(index_digest(first), index_digest(third)));
    assert_ok(index_save(first, path, KEY));
    assert_ok(index_load(path, KEY, &second));
    assert_true(index_has_beginnings(second));
    check_beginning(second, 0, (index_beginning){0, 0, 3, 8});
    check_beginning(second, 1, (index_beginning){0});
    check_beginning(second, 2, (index_beginning){2, 5, 3, 8});
    assert_true(hash_equal(index_digest(first), index_digest(second)));
    index_free(&first);
    index_free(&second);
    index_free(&third);
    harness_remove(&root);
}

/* The predecessor may turn out to be refused after it was compared with. */
static void test_beginnings__a_refused_predecessor_is_none(void **state)
{
    (void)state;
    data_index *index = with_beginnings();
    assert_ok(index_put_beginning(index, 2, &(index_beginning){1, 5, 3, 8}));
    assert_ok(index_seal(index));
    check_beginning(index, 2, (index_beginning){0, 0, 3, 8});
    index_free(&index);
}

static void test_beginnings__impossible_ones_are_refused(void **state)
{
    (void)state;
    static const index_beginning wrong[] = {{3, 1, 0, 1},  {-1, 1, 0, 1}, {2, 11, 0, 1},
                                            {2, -1, 0, 1}, {0, 1, 0, 1},  {2, 1, 10, 1},
                                            {2, 1, -1, 1}, {2, 1, 0, 0},  {2, 1, 0, 10}};
    data_index *index = with_beginnings();
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++)
        assert_fails(ST_BAD_INPUT, index_put_beginning(index, 2, &wrong[k]),
                     "beginning of sample 2");
    assert_fails(ST_BAD_INPUT, index_put_beginning(index, 1, &(index_beginning){0, 0, 0, 1}), "1");
    index_free(&index);
}

/* The file is refused when it is cut at any byte and when any bit is flipped. */
static void test_index__damage_is_refused(void **state)
{
    (void)state;
    char *root = harness_temp(), path[1024];
    snprintf(path, sizeof path, "%s/index.tsx", root);
    data_index *first = make_index(77, 0, 12), *second = NULL;
    char digest[HASH_TEXT];
    hash_print(index_digest(first), digest);
    /* That of every build so far: streams are continued by it. */
    assert_string_equal(digest, "ebba5be0940a53bd7bccb72faec22409");
    assert_ok(index_save(first, path, KEY));
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    uint8_t bytes[1024];
    size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    assert_ok(index_parse(span_of(bytes, size), path, KEY, &second));
    check_index(second);
    index_free(&second);
    for (size_t count = 0; count < size; count++) {
        /* its own block, so that a sanitizer sees a read beyond it */
        uint8_t *cut = malloc(count + 1);
        memcpy(cut, bytes, count);
        assert_int_equal(index_parse(span_of(cut, count), path, KEY, &second), ST_BAD_INPUT);
        free(cut);
    }
    for (size_t bit = 0; bit < 8 * size; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_equal(index_parse(span_of(bytes, size), path, KEY, &second), ST_BAD_INPUT);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    assert_null(second);
    index_free(&first);
    harness_remove(&root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_index__is_read_back_from_the_file),
        cmocka_unit_test(test_index__mixing_equals_building_with_weights),
        cmocka_unit_test(test_index__digest_depends_on_contents_only),
        cmocka_unit_test(test_index__refuses_wrong_records),
        cmocka_unit_test(test_index__damage_is_refused),
        cmocka_unit_test(test_beginnings__are_read_back_and_enter_the_digest),
        cmocka_unit_test(test_beginnings__a_refused_predecessor_is_none),
        cmocka_unit_test(test_beginnings__impossible_ones_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
