/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of safetensors.h: a written file is read back, and each way in which a header can be wrong
 * is refused with a message that names the tensor. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/model_folder/safetensors.h"

/* A block of this header and n_data bytes of zeros; the caller frees it. */
static uint8_t *block_of(const char *json, size_t n_data, size_t *out_size)
{
    size_t length = strlen(json);
    uint8_t *block = (uint8_t *)calloc(8 + length + n_data, 1);
    assert_non_null(block);
    store_u64(block, length);
    memcpy(block + 8, json, length);
    *out_size = 8 + length + n_data;
    return block;
}

static void refuse_header(const char *json, size_t n_data, const char *words)
{
    size_t size;
    uint8_t *block = block_of(json, n_data, &size);
    st_file tensors;
    assert_fails(ST_BAD_INPUT, st_parse(span_of(block, size), "x.safetensors", &tensors), words);
    free(block);
}

static void test_parse__refuses_each_wrong_header(void **state)
{
    (void)state;
#define TENSOR(name, dtype, shape, offsets)                                                        \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
    refuse_header(
        "{" TENSOR("a", "F32", "[2]", "[0,8]") "," TENSOR("b", "F32", "[2]", "[4,12]") "}", 12,
        "\"b\" overlaps \"a\"");
    refuse_header(
        "{" TENSOR("a", "F32", "[2]", "[0,8]") "," TENSOR("b", "F32", "[2]", "[12,20]") "}", 20,
        "4 unused bytes before tensor \"b\"");
    refuse_header("{" TENSOR("a", "F32", "[2]", "[4,12]") "}", 12, "4 unused bytes");
    refuse_header("{" TENSOR("a", "F32", "[2]", "[0,8]") "}", 9,
                  "1 bytes after the last tensor (\"a\")");
    refuse_header("{" TENSOR("a", "F32", "[2]", "[0,8]") "}", 7, "\"a\" ends at data byte 8");
    refuse_header("{" TENSOR("a", "F32", "[2]", "[0,4]") "}", 4,
                  "need 8 bytes, its offsets hold 4");
    refuse_header("{" TENSOR("a", "F32", "[2]", "[8,0]") "}", 8,
                  "two whole numbers, the second not below the first");
    refuse_header("{" TENSOR("a", "F32", "[2]", "[0,8,9]") "}", 8,
                  "two whole numbers, the second not below the first");
    refuse_header("{" TENSOR("a", "F32", "[2]", "[0.0,8]") "}", 8,
                  "two whole numbers, the second not below the first");
    refuse_header("{" TENSOR("a", "F33", "[2]", "[0,8]") "}", 8, "\"F33\" is not supported");
    refuse_header("{" TENSOR("a", "F32", "[-2]", "[0,8]") "}", 8, "dimension 0 of its shape");
    refuse_header("{" TENSOR("a", "F32", "[2,1e0]", "[0,8]") "}", 8, "dimension 1 of its shape");
    refuse_header("{" TENSOR("a", "F32", "2", "[0,8]") "}", 8, "shape");
    refuse_header("{" TENSOR("a", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, "at most 8");
    refuse_header("{" TENSOR("a", "F32", "[4294967296,4294967296]", "[0,0]") "}", 0, "overflows");
    refuse_header("{" TENSOR("a", "F32", "[0,4294967296,4294967296]", "[0,0]") "}", 0, "overflows");
    refuse_header("{" TENSOR("a", "U8", "[1]", "[0,1]") "," TENSOR("a", "U8", "[1]", "[1,2]") "}",
                  2, "\"a\" twice");
    refuse_header("{" TENSOR("a\\u0000b", "U8", "[1]", "[0,1]") "}", 1, "NUL");
    refuse_header("{\"__metadata__\":{\"k\":\"\\\\u0000\\\\\\u0000\"}}", 0, "NUL");
    refuse_header("{\"a\":1}", 0, "\"a\": expected an object");
    refuse_header("{\"a\":{}}", 0, "no dtype");
    refuse_header("{\"__metadata__\":[]}", 0, "__metadata__: expected an object");
    refuse_header("{\"__metadata__\":{\"k\":1}}", 0, "\"k\": expected a text");
    refuse_header("[]", 0, "must begin with {");
    refuse_header(" {}", 0, "must begin with {");
    refuse_header("", 0, "must begin with {");
    refuse_header("{", 0, "not JSON");
}

static void test_parse__every_truncation_is_refused(void **state)
{
    (void)state;
    size_t size;
    uint8_t *block = block_of(
        "{" TENSOR("a", "F32", "[2]", "[0,8]") "," TENSOR("b", "U8", "[0]", "[8,8]") "}", 8, &size);
    st_file tensors;
    assert_ok(st_parse(span_of(block, size), "x", &tensors));
    assert_int_equal(tensors.n_tensors, 2);
    st_close(&tensors);
    for (size_t count = 0; count < size; count++) {
        /* the exact size, so that a sanitizer sees a read beyond it */
        uint8_t *cut = (uint8_t *)malloc(count + 1);
        memcpy(cut, block, count);
        cut = (uint8_t *)realloc(cut, count ? count : 1);
        assert_int_equal(st_parse(span_of(cut, count), "x", &tensors), ST_BAD_INPUT);
        free(cut);
    }
    store_u64(block, UINT64_MAX);
    assert_fails(ST_BAD_INPUT, st_parse(span_of(block, size), "x", &tensors), "header of");
    store_u64(block, 100000001);
    assert_fails(ST_BAD_INPUT, st_parse(span_of(block, size), "x", &tensors), "at most 100000000");
    free(block);
}

static void test_file__round_trip(void **state)
{
    (void)state;
    char *folder = harness_temp(), path[4096], temporary[4200];
    snprintf(path, sizeof path, "%s/m.safetensors", folder);
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    double doubles[3] = {1, 2, 3};
    float one = 7;
    uint8_t bytes[6] = {1, 2, 3, 4, 5, 6};
    const st_tensor tensors[] = {
        {"z.weight", DT_F64, 1, {3}, span_of(doubles, sizeof doubles)},
        {"scalar", DT_F32, 0, {0}, span_of(&one, sizeof one)},
        {"empty", DT_I32, 2, {0, 5}, span_of(NULL, 0)},
        {"a \"quoted\" \xC3\xA9", DT_U8, 2, {2, 3}, span_of(bytes, sizeof bytes)},
    };
    const st_meta meta[] = {{"format", "pt"}, {"note", "{\"x\": \"y\"}"}};
    assert_ok(st_write(path, tensors, 4, meta, 2));
    assert_int_not_equal(access(temporary, F_OK), 0);
    st_file file;
    assert_ok(st_open(path, &file));
    assert_int_equal(file.n_tensors, 4);
    assert_string_equal(st_meta_find(&file, "note"), "{\"x\": \"y\"}");
    assert_null(st_meta_find(&file, "none"));
    assert_null(st_find(&file, "weight"));
    const st_tensor *tensor;
    assert_ok(st_want(&file, "z.weight", DT_F64, 1, path, &tensor));
    assert_memory_equal(tensor->data.data, doubles, sizeof doubles);
    assert_ok(st_want(&file, "scalar", DT_F32, 0, path, &tensor));
    assert_int_equal(st_count(tensor), 1);
    assert_ok(st_want(&file, "empty", DT_I32, -1, path, &tensor));
    assert_int_equal(st_count(tensor), 0);
    assert_ok(st_want(&file, tensors[3].name, DT_U8, 2, path, &tensor));
    assert_memory_equal(tensor->data.data, bytes, sizeof bytes);
    assert_fails(ST_BAD_INPUT, st_want(&file, "scalar", DT_F64, 1, path, &tensor),
                 "expected F64 of 1");
    assert_fails(ST_BAD_INPUT, st_want(&file, "none", DT_F64, 1, path, &tensor),
                 "\"none\" is missing");
    uint8_t *packed;
    size_t size;
    assert_ok(st_pack(tensors, 4, meta, 2, &packed, &size));
    assert_int_equal(size, file.map_size);
    assert_memory_equal(packed, file.map, size);
    assert_int_equal(load_u64(packed) % 8, 0);
    free(packed);
    st_close(&file);
    st_close(&file);
    harness_remove(&folder);
}

/* A value may itself be JSON with an escaped NUL, because its backslash is escaped again. */
static void test_meta__may_hold_an_escaped_nul(void **state)
{
    (void)state;
    const st_meta meta[] = {{"references", "[\"\\u0000\"]"}, {"note", "\\\\u0000 \\u0000"}};
    uint8_t *packed;
    size_t size;
    st_file tensors;
    assert_ok(st_pack(NULL, 0, meta, 2, &packed, &size));
    assert_ok(st_parse(span_of(packed, size), "x", &tensors));
    assert_string_equal(st_meta_find(&tensors, "references"), meta[0].value);
    assert_string_equal(st_meta_find(&tensors, "note"), meta[1].value);
    st_close(&tensors);
    free(packed);
}

static void test_write__refuses_our_own_mistakes(void **state)
{
    (void)state;
    uint8_t bytes[16] = {0}, *out;
    size_t size;
    const st_tensor odd[] = {{"a", DT_U8, 1, {1}, span_of(bytes, 1)},
                             {"b", DT_F32, 1, {2}, span_of(bytes, 8)}};
    assert_fails(ST_INTERNAL, st_header(odd, 2, NULL, 0, &out, &size), "larger dtypes first");
    const st_tensor wrong = {"c", DT_F32, 1, {3}, span_of(bytes, 8)};
    assert_fails(ST_INTERNAL, st_header(&wrong, 1, NULL, 0, &out, &size), "need 12 bytes");
    assert_fails(ST_CANT_CREATE, st_write("/nowhere/x", NULL, 0, NULL, 0), "/nowhere/x.tmp");
}

static void test_open__names_the_file(void **state)
{
    (void)state;
    st_file tensors;
    assert_fails(ST_NO_INPUT, st_open("/nowhere/x", &tensors), "/nowhere/x");
    assert_fails(ST_BAD_INPUT, st_open("/tmp", &tensors), "/tmp: expected a file");
    assert_fails(ST_BAD_INPUT, st_open("/dev/null", &tensors), "/dev/null: expected a file");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse__refuses_each_wrong_header),
        cmocka_unit_test(test_parse__every_truncation_is_refused),
        cmocka_unit_test(test_file__round_trip),
        cmocka_unit_test(test_meta__may_hold_an_escaped_nul),
        cmocka_unit_test(test_write__refuses_our_own_mistakes),
        cmocka_unit_test(test_open__names_the_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
