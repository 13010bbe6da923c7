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
        arena a;
        row r;
        arena_init(&a, 0);
        row_make(&recipes[i], &a, &r);
        assert_ok(row_check(&r, "made"));
        uint8_t video[64];
        assert_ok(row_find_videos(&r, "made", video));
        int per_doc = recipes[i].images + recipes[i].videos;
        for (int64_t k = 0; k < r.n_items; k++)
            assert_int_equal(video[k], k % per_doc >= recipes[i].images);
        arena_done(&a);
    }
}

/* One value is wrong at a time, and the message names it. */
static void test_row_check__names_the_wrong_value(void **state)
{
    (void)state;
    arena a;
    row r;
    arena_init(&a, 0);
    row_make(&recipes[3], &a, &r);
#define WRONG(place, value, words)                                                                 \
    do {                                                                                           \
        __typeof__(place) before = (place);                                                        \
        (place) = (value);                                                                         \
        assert_fails(ST_BAD_INPUT, row_check(&r, "row 7"), words);                                 \
        assert_non_null(strstr(status_text(), "row 7"));                                           \
        (place) = before;                                                                          \
    } while (0)
    int64_t visual = 0;
    while (r.visual_row[visual] < 0)
        visual++;
    WRONG(r.n_docs, -1, "count 1");
    WRONG(r.cu_seqlens[0], 1, "expected 0 to");
    WRONG(r.cu_seqlens[r.n_docs], (int32_t)r.n_tokens - 1, "expected 0 to");
    WRONG(r.cu_seqlens[1], 0, "document 0");
    WRONG(r.cu_seqlens[1], (int32_t)r.n_tokens + 5, "document 0");
    WRONG(r.labels[0], 5, "first token of document 0");
    WRONG(r.labels[1], -7, "labels[1]");
    WRONG(r.input_ids[1], -1, "input_ids[1]");
    WRONG(r.position_ids[r.n_tokens + 2], -4, "position_ids[1, 2]");
    WRONG(r.loss_weight[2], NAN, "loss_weight[2]");
    WRONG(r.loss_weight[2], -1, "loss_weight[2]");
    WRONG(r.doc_part[1], -1, "doc_part[1]");
    WRONG(r.grid_thw[1], 3, "grid_thw[0]");
    WRONG(r.grid_thw[1], 0, "grid_thw[0]");
    WRONG(r.grid_thw[1], r.grid_thw[1] + 2, "grid_thw sums to");
    WRONG(r.n_patches, r.n_patches + 4, "grid_thw sums to");
    WRONG(r.visual_row[visual], 1, "expected the first row of an item");
    WRONG(r.visual_row[visual], -1, "visual_row");
    WRONG(r.visual_row[visual], 1 << 30, "visual_row");
    WRONG(r.visual_row[visual], -2, "visual_row");
    WRONG(r.input_ids[visual], IMAGE_ID + 50, "visual_row"); /* one item with two token ids */
    int32_t *last = NULL;                                    /* the last visual token */
    for (int64_t t = 0; t < r.n_tokens; t++)
        if (r.visual_row[t] >= 0)
            last = &r.visual_row[t];
    WRONG(*last, -1, "cut by the end");
    int64_t swap = r.n_patches;
    /* the token ids say which items are videos, and the counts now say the opposite */
    r.n_patches = r.n_video_patches;
    r.n_video_patches = swap;
    assert_fails(ST_BAD_INPUT, row_check(&r, "row 7"), "the token ids of the items do not fit");
    r.n_video_patches = r.n_patches;
    r.n_patches = swap;
    assert_ok(row_check(&r, "row 7"));
#undef WRONG
    arena_done(&a);
}

/* Prefixes that point forward, to a branch, to themselves or across others, and what only a prefix
 * may be. */
static void test_row_check__names_what_is_wrong_with_a_prefix(void **state)
{
    (void)state;
    arena a;
    row r;
    arena_init(&a, 0);
    row_make(&(row_recipe){.seed = 9, .n_docs = 5, .images = 1, .weights = 1, .prefix = 1}, &a, &r);
    assert_ok(row_check(&r, "row 8"));
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
    memcpy(right, r.doc_prefix, sizeof right);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        memcpy(r.doc_prefix, wrong[i].prefix, sizeof right);
        assert_fails(ST_BAD_INPUT, row_check(&r, "row 8"), wrong[i].place);
    }
    memcpy(r.doc_prefix, right, sizeof right);
#define WRONG(place, value, words)                                                                 \
    do {                                                                                           \
        __typeof__(place) before = (place);                                                        \
        (place) = (value);                                                                         \
        assert_fails(ST_BAD_INPUT, row_check(&r, "row 8"), words);                                 \
        (place) = before;                                                                          \
    } while (0)
    WRONG(r.doc_part[0], 0, "document 0 is a prefix with");
    WRONG(r.doc_part[2], 1, "doc_part[2] is 1");
    WRONG(r.doc_part[2], -1, "doc_part[2] is -1");
    WRONG(r.doc_part[2], -2, "doc_part[2] is -2");
    WRONG(r.doc_sample_id[0], r.doc_sample_id[1] + 1, "that of the prefix's first branch");
    WRONG(r.labels[1], 5, "token 1 of the prefix");
    WRONG(r.loss_weight[1], 2, "token 1 of the prefix");
#undef WRONG
    assert_ok(row_check(&r, "row 8"));
    arena_done(&a);
}

static void test_row_digest__covers_every_tensor(void **state)
{
    (void)state;
    arena a;
    row r;
    arena_init(&a, 0);
    row_make(&recipes[3], &a, &r);
    hash128 before, after;
    assert_ok(row_digest(&r, &before));
    r.cursor = "{}"; /* the cursor is no part of the data */
    assert_ok(row_digest(&r, &after));
    assert_true(hash_equal(before, after));
    st_tensor t[ROW_TENSORS];
    size_t n;
    row_tensors(&r, 1, t, &n);
    assert_int_equal(n, 11);
    for (size_t i = 0; i < n; i++) {
        uint8_t *byte = (uint8_t *)(uintptr_t)t[i].data.data + t[i].data.size - 1;
        *byte ^= 1;
        assert_ok(row_digest(&r, &after));
        assert_false(hash_equal(before, after));
        *byte ^= 1;
    }
    float *weight = r.loss_weight;
    r.loss_weight = NULL;
    assert_ok(row_digest(&r, &after));
    assert_false(hash_equal(before, after));
    r.loss_weight = weight;
    arena_done(&a);
}

static void test_row_digest__of_the_empty_row_is_fixed(void **state)
{
    (void)state;
    arena a;
    row r = {0};
    hash128 h;
    char text[HASH_TEXT];
    arena_init(&a, 0);
    assert_ok(row_alloc(&r, &a, 0));
    assert_ok(row_digest(&r, &h));
    hash_print(h, text);
    assert_string_equal(text, "55f8fdd6f8fd878c1199402293dde1ba");
    arena_done(&a);
}

static void test_row_save__is_read_back(void **state)
{
    (void)state;
    char *folder = harness_temp(), path[300];
    snprintf(path, sizeof path, "%s/row.safetensors", folder);
    for (int i = 0; i < N_RECIPES; i++) {
        arena a;
        row r, back;
        st_file f;
        arena_init(&a, 0);
        row_make(&recipes[i], &a, &r);
        assert_ok(row_save(&r, path));
        assert_ok(row_open(path, &f, &back));
        rows_assert_equal(&r, &back);
        hash128 h1, h2;
        assert_ok(row_digest(&r, &h1));
        assert_ok(row_digest(&back, &h2));
        assert_true(hash_equal(h1, h2));
        st_close(&f);
        arena_done(&a);
    }
    harness_remove(&folder);
}

static void test_row_from_tensors__refuses(void **state)
{
    (void)state;
    arena a;
    row r, back;
    st_tensor t[ROW_TENSORS];
    size_t n, size;
    uint8_t *block;
    st_file f;
    arena_init(&a, 0);
    row_make(&recipes[2], &a, &r);
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
        row_tensors(&r, 1, t, &n);
        for (size_t i = 0; i < n; i++) {
            if (cases[k].name && strcmp(t[i].name, cases[k].name))
                continue;
            if (!cases[k].name && !strcmp(t[i].name, "input_ids"))
                t[i].name = "renamed";
            if (cases[k].name && cases[k].dtype != DT_COUNT)
                t[i].dtype = (st_dtype)cases[k].dtype;
            if (cases[k].name && cases[k].rows) {
                t[i].shape[0] -= 1;
                t[i].data.size -= 4;
            }
        }
        assert_ok(st_pack(t, n, NULL, 0, &block, &size));
        assert_ok(st_parse(span_of(block, size), "block", &f));
        assert_fails(ST_BAD_INPUT, row_from_tensors(&f, "block", 1, &back), cases[k].words);
        st_close(&f);
        free(block);
    }
    row_tensors(&r, 1, t, &n); /* on the wire, pixels are not in the block */
    assert_ok(st_pack(t, n, NULL, 0, &block, &size));
    assert_ok(st_parse(span_of(block, size), "block", &f));
    assert_fails(ST_BAD_INPUT, row_from_tensors(&f, "block", 0, &back), "\"pixels\"");
    st_close(&f);
    free(block);
    arena_done(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
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
