/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of batch.h: row_check accepts every kind of row and refuses each wrong value by name, the
 * digest covers every tensor, and a row is saved to a file and read back. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <stdlib.h>

#include "tests/harness.h"
#include "tests/unit/proto/seeded_rows.h"

static const row_recipe recipes[] = {
    {.seed = 1},              /* an empty row */
    {.seed = 2, .n_docs = 1}, /* only text */
    {.seed = 3, .n_docs = 3, .images = 2},
    {.seed = 4, .n_docs = 2, .images = 1, .videos = 1, .weights = 1},
    {.seed = 5, .n_docs = 2, .videos = 2},
    {.seed = 6, .n_docs = 2, .images = 1, .videos = 2, .one_frame_videos = 1},
    {.seed = 7, .n_docs = 3, .images = 2, .shared = 1},
    {.seed = 8, .n_docs = 4, .images = 1, .weights = 1, .prefix = 1},
};
enum { N_RECIPES = sizeof recipes / sizeof recipes[0] };

static void test_row_check__accepts_every_recipe(void **state)
{
    (void)state;
    for (int i = 0; i < N_RECIPES; i++) {
        arena memory;
        row packed;
        arena_init(&memory, 0);
        row_make(&recipes[i], &memory, &packed);
        assert_ok(row_check(&packed, "made"));
        uint8_t video[64];
        assert_ok(row_find_videos(&packed, "made", video));
        int per_doc = recipes[i].images + recipes[i].videos;
        for (int64_t k = 0; k < packed.n_items; k++)
            assert_int_equal(video[k], k % per_doc >= recipes[i].images);
        arena_done(&memory);
    }
}

/* One value is wrong at a time, and the message names it. */
static void test_row_check__names_the_wrong_value(void **state)
{
    (void)state;
    arena memory;
    row packed;
    arena_init(&memory, 0);
    row_make(&recipes[3], &memory, &packed);
#define WRONG(place, value, words)                                                                 \
    do {                                                                                           \
        __typeof__(place) before = (place);                                                        \
        (place) = (value);                                                                         \
        assert_fails(ST_BAD_INPUT, row_check(&packed, "row 7"), words);                            \
        assert_non_null(strstr(status_text(), "row 7"));                                           \
        (place) = before;                                                                          \
    } while (0)
    int64_t visual = 0;
    while (packed.visual_row[visual] < 0)
        visual++;
    WRONG(packed.n_docs, -1, "count 1");
    WRONG(packed.cu_seqlens[0], 1, "expected 0 to");
    WRONG(packed.cu_seqlens[packed.n_docs], (int32_t)packed.n_tokens - 1, "expected 0 to");
    WRONG(packed.cu_seqlens[1], 0, "document 0");
    WRONG(packed.cu_seqlens[1], (int32_t)packed.n_tokens + 5, "document 0");
    WRONG(packed.labels[0], 5, "first token of document 0");
    WRONG(packed.labels[1], -7, "labels[1]");
    WRONG(packed.input_ids[1], -1, "input_ids[1]");
    WRONG(packed.position_ids[packed.n_tokens + 2], -4, "position_ids[1, 2]");
    WRONG(packed.loss_weight[2], NAN, "loss_weight[2]");
    WRONG(packed.loss_weight[2], -1, "loss_weight[2]");
    WRONG(packed.doc_part[1], -1, "doc_part[1]");
    WRONG(packed.grid_thw[1], 3, "grid_thw[0]");
    WRONG(packed.grid_thw[1], 0, "grid_thw[0]");
    WRONG(packed.grid_thw[1], packed.grid_thw[1] + 2, "grid_thw sums to");
    WRONG(packed.n_patches, packed.n_patches + 4, "grid_thw sums to");
    WRONG(packed.visual_row[visual], 1, "expected the first row of an item");
    WRONG(packed.visual_row[visual], -1, "visual_row");
    WRONG(packed.visual_row[visual], 1 << 30, "visual_row");
    WRONG(packed.visual_row[visual], -2, "visual_row");
    WRONG(packed.input_ids[visual], IMAGE_ID + 50, "visual_row"); /* one item with two token ids */
    int32_t *last = NULL;                                         /* the last visual token */
    for (int64_t token = 0; token < packed.n_tokens; token++)
        if (packed.visual_row[token] >= 0)
            last = &packed.visual_row[token];
    WRONG(*last, -1, "cut by the end");
    int64_t swap = packed.n_patches;
    /* the token ids say which items are videos, and the counts now say the opposite */
    packed.n_patches = packed.n_video_patches;
    packed.n_video_patches = swap;
    assert_fails(ST_BAD_INPUT, row_check(&packed, "row 7"),
                 "the token ids of the items do not fit");
    packed.n_video_patches = packed.n_patches;
    packed.n_patches = swap;
    assert_ok(row_check(&packed, "row 7"));
#undef WRONG
    arena_done(&memory);
}

/* Prefixes that point forward, to a branch, to themselves or across others, and what only a prefix
 * may be. */
static void test_row_check__names_what_is_wrong_with_a_prefix(void **state)
{
    (void)state;
    arena memory;
    row packed;
    arena_init(&memory, 0);
    row_make(&(row_recipe){.seed = 9, .n_docs = 5, .images = 1, .weights = 1, .prefix = 1}, &memory,
             &packed);
    assert_ok(row_check(&packed, "row 8"));
    const struct {
        int32_t prefix[5];
        const char *place;
    } wrong[] = {
        {{1, 0, 0, 0, 0}, "row 8: doc_prefix[0] is 1"},          /* forward */
        {{-1, 0, 0, 4, 0}, "row 8: doc_prefix[3] is 4"},         /* forward */
        {{-1, 0, 0, 1, 0}, "row 8: doc_prefix[3] is 1"},         /* to a branch */
        {{0, 0, 0, 0, 0}, "row 8: doc_prefix[0] is 0"},          /* to itself */
        {{-1, 0, 0, 3, 0}, "row 8: doc_prefix[3] is 3"},         /* to itself */
        {{-1, 0, 0, -1, 0}, "row 8: doc_prefix[4] is 0"},        /* across a document */
        {{-1, 0, 0, 0, 5}, "row 8: doc_prefix[4] is 5"},         /* out of the row */
        {{-1, 0, 0, 0, -2}, "row 8: doc_prefix[4] is -2"},       /* likewise */
        {{-1, 0, 0, 0, INT32_MAX}, "row 8: doc_prefix[4] is 2"}, /* likewise */
        {{-1, -1, -1, -1, -1}, "row 8: document 0 is a prefix"}, /* without branches */
        {{-1, 0, -1, -1, -1}, "row 8: document 0 is a prefix"},  /* with one branch */
        {{-1, -1, 1, 1, 1}, "row 8: document 0 is a prefix"},    /* whose branches are another's */
    };
    int32_t right[5];
    memcpy(right, packed.doc_prefix, sizeof right);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        memcpy(packed.doc_prefix, wrong[i].prefix, sizeof right);
        assert_fails(ST_BAD_INPUT, row_check(&packed, "row 8"), wrong[i].place);
    }
    memcpy(packed.doc_prefix, right, sizeof right);
#define WRONG(place, value, words)                                                                 \
    do {                                                                                           \
        __typeof__(place) before = (place);                                                        \
        (place) = (value);                                                                         \
        assert_fails(ST_BAD_INPUT, row_check(&packed, "row 8"), words);                            \
        (place) = before;                                                                          \
    } while (0)
    WRONG(packed.doc_part[0], 0, "document 0 is a prefix with");
    WRONG(packed.doc_part[2], 1, "doc_part[2] is 1");
    WRONG(packed.doc_part[2], -1, "doc_part[2] is -1");
    WRONG(packed.doc_part[2], -2, "doc_part[2] is -2");
    WRONG(packed.doc_sample_id[0], packed.doc_sample_id[1] + 1,
          "that of the prefix's first branch");
    WRONG(packed.labels[1], 5, "token 1 of the prefix");
    WRONG(packed.loss_weight[1], 2, "token 1 of the prefix");
#undef WRONG
    assert_ok(row_check(&packed, "row 8"));
    arena_done(&memory);
}

static void test_row_digest__covers_every_tensor(void **state)
{
    (void)state;
    arena memory;
    row packed;
    arena_init(&memory, 0);
    row_make(&recipes[3], &memory, &packed);
    hash128 before, after;
    assert_ok(row_digest(&packed, &before));
    packed.cursor = "{}"; /* the cursor is no part of the data */
    assert_ok(row_digest(&packed, &after));
    assert_true(hash_equal(before, after));
    st_tensor tensor[ROW_TENSORS];
    size_t count;
    row_tensors(&packed, 1, tensor, &count);
    assert_int_equal(count, 11);
    for (size_t i = 0; i < count; i++) {
        uint8_t *byte = (uint8_t *)(uintptr_t)tensor[i].data.data + tensor[i].data.size - 1;
        *byte ^= 1;
        assert_ok(row_digest(&packed, &after));
        assert_false(hash_equal(before, after));
        *byte ^= 1;
    }
    float *weight = packed.loss_weight;
    packed.loss_weight = NULL;
    assert_ok(row_digest(&packed, &after));
    assert_false(hash_equal(before, after));
    packed.loss_weight = weight;
    arena_done(&memory);
}

static void test_row_digest__of_the_empty_row_is_fixed(void **state)
{
    (void)state;
    arena memory;
    row packed = {0};
    hash128 digest;
    char text[HASH_TEXT];
    arena_init(&memory, 0);
    assert_ok(row_alloc(&packed, &memory, 0));
    assert_ok(row_digest(&packed, &digest));
    hash_print(digest, text);
    assert_string_equal(text, "55f8fdd6f8fd878c1199402293dde1ba");
    arena_done(&memory);
}

static void test_row_save__is_read_back(void **state)
{
    (void)state;
    char *folder = harness_temp(), path[300];
    snprintf(path, sizeof path, "%s/row.safetensors", folder);
    for (int i = 0; i < N_RECIPES; i++) {
        arena memory;
        row packed, back;
        st_file tensors;
        arena_init(&memory, 0);
        row_make(&recipes[i], &memory, &packed);
        assert_ok(row_save(&packed, path));
        assert_ok(row_open(path, &tensors, &back));
        rows_assert_equal(&packed, &back);
        hash128 h1, h2;
        assert_ok(row_digest(&packed, &h1));
        assert_ok(row_digest(&back, &h2));
        assert_true(hash_equal(h1, h2));
        st_close(&tensors);
        arena_done(&memory);
    }
    harness_remove(&folder);
}

static void test_row_from_tensors__refuses(void **state)
{
    (void)state;
    arena memory;
    row packed, back;
    st_tensor tensor[ROW_TENSORS];
    size_t count, size;
    uint8_t *block;
    st_file tensors;
    arena_init(&memory, 0);
    row_make(&recipes[2], &memory, &packed);
    struct {
        int dtype, columns, rows;
        const char *name, *words;
    } cases[] = {
        {DT_F32, 0, 0, "labels", "labels"},
        {DT_COUNT, 0, -1, "input_ids", "has shape"},
        {DT_COUNT, 0, -1, "cu_seqlens", "has shape"},
        {DT_COUNT, 0, 0, NULL, "input_ids"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        row_tensors(&packed, 1, tensor, &count);
        for (size_t i = 0; i < count; i++) {
            if (cases[k].name && strcmp(tensor[i].name, cases[k].name))
                continue;
            if (!cases[k].name && !strcmp(tensor[i].name, "input_ids"))
                tensor[i].name = "renamed";
            if (cases[k].name && cases[k].dtype != DT_COUNT)
                tensor[i].dtype = (st_dtype)cases[k].dtype;
            if (cases[k].name && cases[k].rows) {
                tensor[i].shape[0] -= 1;
                tensor[i].data.size -= 4;
            }
        }
        assert_ok(st_pack(tensor, count, NULL, 0, &block, &size));
        assert_ok(st_parse(span_of(block, size), "block", &tensors));
        assert_fails(ST_BAD_INPUT, row_from_tensors(&tensors, "block", 1, &back), cases[k].words);
        st_close(&tensors);
        free(block);
    }
    row_tensors(&packed, 1, tensor, &count); /* on the wire, pixels are not in the block */
    assert_ok(st_pack(tensor, count, NULL, 0, &block, &size));
    assert_ok(st_parse(span_of(block, size), "block", &tensors));
    assert_fails(ST_BAD_INPUT, row_from_tensors(&tensors, "block", 0, &back), "\"pixels\"");
    st_close(&tensors);
    free(block);
    arena_done(&memory);
}

static void test_row_count_targets__counts_each_length(void **state)
{
    (void)state;
    enum { MOST = 70 };
    int32_t label[MOST], cu_seqlens[2];
    row packed = {.labels = label, .cu_seqlens = cu_seqlens, .n_docs = 1};
    uint32_t luck = 1;
    for (int32_t from = 0; from < 4; from++)
        for (int32_t to = from; to <= MOST; to++) {
            int64_t count = 0;
            for (int32_t i = 0; i < MOST; i++) {
                luck = luck * 1664525 + 1013904223;
                label[i] = luck >> 31 ? (int32_t)(luck >> 8) : NO_LABEL;
                count += i >= from && i < to && label[i] != NO_LABEL;
            }
            cu_seqlens[0] = from;
            cu_seqlens[1] = to;
            assert_int_equal(row_count_targets(&packed, 0, 1), count);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_count_targets__counts_each_length),
        cmocka_unit_test(test_row_check__accepts_every_recipe),
        cmocka_unit_test(test_row_check__names_the_wrong_value),
        cmocka_unit_test(test_row_check__names_what_is_wrong_with_a_prefix),
        cmocka_unit_test(test_row_digest__covers_every_tensor),
        cmocka_unit_test(test_row_digest__of_the_empty_row_is_fixed),
        cmocka_unit_test(test_row_save__is_read_back),
        cmocka_unit_test(test_row_from_tensors__refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
