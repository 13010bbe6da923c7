/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of row.h: positions and whole rows equal the worked examples of trainer/model/equations.md,
 * documents may share pictures, show clips, or be quarantined, and samples that share a prefix have
 * in the row what each has alone. */
#include <string.h>

#include "prepd/worker/row.h"
#include "tests/harness.h"

enum { PAD = 2003, N_A = 21, N_B = 15, N_C = 10, TOKENS = N_A + N_B + N_C };

static const fit_grid grids_a[] = {{64, 96, 4, 6}, {96, 64, 6, 4}};
/* a video as two single frames */
static const fit_grid grids_b[] = {{64, 64, 4, 4}, {64, 64, 4, 4}};
static const int64_t at_a[] = {4, 13}, at_b[] = {3, 9};

static const int32_t golden[3][TOKENS] = {
    {0, 1, 2, 3, 4, 4, 4, 4, 4, 4, 7, 8, 9,  10, 10, 10, 10, 10, 10, 13, 14, 0, 1,
     2, 3, 3, 3, 3, 5, 6, 7, 7, 7, 7, 9, 10, 0,  1,  2,  3,  4,  5,  6,  7,  8, 9},
    {0, 1, 2, 3, 4, 4, 4, 5, 5, 5, 7, 8, 9,  10, 10, 11, 11, 12, 12, 13, 14, 0, 1,
     2, 3, 3, 4, 4, 5, 6, 7, 7, 8, 8, 9, 10, 0,  1,  2,  3,  4,  5,  6,  7,  8, 9},
    {0, 1, 2, 3, 4, 5, 6, 4, 5, 6, 7, 8, 9,  10, 11, 10, 11, 10, 11, 13, 14, 0, 1,
     2, 3, 4, 3, 4, 5, 6, 7, 8, 7, 8, 9, 10, 0,  1,  2,  3,  4,  5,  6,  7,  8, 9},
};

/* Three documents in which each id, label and patch is different, so that a misplaced one is
 * seen. */
typedef struct fixture {
    int32_t ids[TOKENS], labels[TOKENS];
    int64_t image_at[4];
    uint8_t patches[4][24 * PATCH_BYTES];
    uint8_t *lists[4];
    document docs[3];
} fixture;

static void fixture_make(fixture *setup)
{
    memset(setup, 0, sizeof *setup);
    memcpy(setup->image_at, at_a, sizeof at_a);
    memcpy(setup->image_at + 2, at_b, sizeof at_b);
    for (int i = 0; i < TOKENS; i++)
        setup->ids[i] = setup->labels[i] = 100 + i;
    for (int k = 0; k < 4; k++) {
        const int start = k < 2 ? 0 : N_A;
        const int64_t tokens = fit_tokens(k < 2 ? grids_a[k] : grids_b[k - 2]);
        for (int64_t i = 0; i < tokens; i++) {
            setup->ids[start + setup->image_at[k] + i] = PAD;
            setup->labels[start + setup->image_at[k] + i] = NO_LABEL;
        }
        memset(setup->patches[k], k + 1, sizeof setup->patches[k]);
        setup->lists[k] = setup->patches[k];
    }
    setup->docs[0] =
        (document){7,       0, {setup->ids, setup->labels, N_A, 9, setup->image_at, 2, NULL},
                   grids_a, 2, setup->lists,
                   false};
    setup->docs[1] = (document){
        900,     2, {setup->ids + N_A, setup->labels + N_A, N_B, 7, setup->image_at + 2, 2, NULL},
        grids_b, 2, setup->lists + 2,
        false};
    setup->docs[2] = (document){
        8,    0, {setup->ids + N_A + N_B, setup->labels + N_A + N_B, N_C, 10, NULL, 0, NULL},
        NULL, 0, NULL,
        false};
}

/* Byte `at` of patch index, counted through all pictures of the row. */
static int pixel(const row *packed, int64_t index, int64_t at)
{
    int64_t item = 0, patches;
    for (;; item++, index -= patches) {
        const int32_t *grid = packed->grid_thw + 3 * item;
        patches = packed->items[item].is_video ? 0 : (int64_t)grid[0] * grid[1] * grid[2];
        if (index < patches)
            return packed->items[item].patches[index * PATCH_BYTES + at];
    }
}

static void test_row_positions__worked_examples(void **state)
{
    int32_t position[3 * TOKENS];
    (void)state;
    row_positions(N_A, at_a, grids_a, 2, position, TOKENS);
    row_positions(N_B, at_b, grids_b, 2, position + N_A, TOKENS);
    row_positions(N_C, NULL, NULL, 0, position + N_A + N_B, TOKENS);
    assert_memory_equal(position, golden, sizeof golden);
}

static void test_row_build__packs_documents(void **state)
{
    static const int32_t borders[] = {0, 21, 36, 46};
    static const int32_t grid[] = {1, 4, 6, 1, 6, 4, 1, 4, 4, 1, 4, 4};
    static fixture setup;
    arena memory;
    row packed;
    (void)state;
    fixture_make(&setup);
    arena_init(&memory, 0);
    assert_ok(row_build(setup.docs, 3, &memory, &packed));
    assert_ok(row_check(&packed, "test"));
    assert_int_equal(packed.n_tokens, TOKENS);
    assert_int_equal(packed.n_patches, 24 + 24 + 16 + 16);
    assert_int_equal(packed.n_video_patches, 0);
    assert_memory_equal(packed.cu_seqlens, borders, sizeof borders);
    assert_int_equal(packed.n_items, 4);
    assert_memory_equal(packed.grid_thw, grid, sizeof grid);
    assert_memory_equal(packed.position_ids, golden, sizeof golden);
    assert_memory_equal(packed.input_ids, setup.ids, sizeof setup.ids);
    int32_t next = 0;
    for (int i = 0; i < TOKENS; i++) {
        const bool first = i == 0 || i == N_A || i == N_A + N_B;
        assert_int_equal(packed.labels[i], first ? NO_LABEL : setup.labels[i]);
        assert_int_equal(packed.visual_row[i], setup.ids[i] == PAD ? next++ : -1);
    }
    assert_int_equal(next, packed.n_patches / 4);
    static const int64_t ends[] = {24, 48, 64, 80};
    for (int64_t i = 0, k = 0; i < packed.n_patches; i++) {
        k += i == ends[k];
        assert_int_equal(pixel(&packed, i, 0), k + 1);
        assert_int_equal(pixel(&packed, i, PATCH_BYTES - 1), k + 1);
    }
    assert_int_equal(packed.doc_sample_id[1], 900);
    assert_int_equal(packed.doc_part[1], 2);
    arena_done(&memory);
}

/* A document that shares the pictures of the one before it has the same visual rows and positions
 * and adds no pictures, even if the one before is quarantined. */
static void test_row_build__shared_images(void **state)
{
    static fixture setup;
    arena memory;
    row packed;
    (void)state;
    arena_init(&memory, 0);
    for (int bad = 0; bad < 2; bad++) {
        fixture_make(&setup);
        document docs[] = {setup.docs[0], setup.docs[0], setup.docs[1], setup.docs[1]};
        docs[1].shared = docs[3].shared = true;
        docs[0].quarantined = bad != 0;
        assert_ok(row_build(docs, 4, &memory, &packed));
        assert_ok(row_check(&packed, "test"));
        assert_int_equal(packed.n_items, 4);
        assert_int_equal(packed.n_patches, 24 + 24 + 16 + 16);
        assert_memory_equal(packed.visual_row, packed.visual_row + N_A, N_A * sizeof(int32_t));
        assert_memory_equal(packed.visual_row + 2 * N_A, packed.visual_row + 2 * N_A + N_B,
                            N_B * sizeof(int32_t));
        assert_memory_equal(packed.position_ids, packed.position_ids + N_A, N_A * sizeof(int32_t));
        for (int64_t i = 0, k = 0; i < packed.n_patches; i++) {
            static const int64_t ends[] = {24, 48, 64, 80};
            k += i == ends[k];
            assert_int_equal(pixel(&packed, i, 0), k + 1);
        }
    }
    document wrong[] = {setup.docs[0], setup.docs[1]};
    wrong[1].shared = true;
    assert_fails(ST_BAD_INPUT, row_build(wrong, 2, &memory, &packed), "shows others");
    assert_fails(ST_BAD_INPUT, row_build(wrong + 1, 1, &memory, &packed), "shows others");
    arena_done(&memory);
}

/* A clip of two pairs of frames among pictures, and a document that shares it. It is one item with
 * a time of 2; its patches are in an array of their own, and its visual rows are counted with those
 * of the pictures. */
static void test_row_build__clips(void **state)
{
    static const fit_grid clip[] = {{64, 64, 4, 4, 2}};
    static uint8_t both[2 * 16 * VIDEO_PATCH_BYTES], *list[] = {both};
    static fixture setup;
    arena memory;
    row packed;
    (void)state;
    arena_init(&memory, 0);
    fixture_make(&setup);
    for (int i = 0; i < 32; i++)
        memset(both + (size_t)i * VIDEO_PATCH_BYTES, 50 + i, VIDEO_PATCH_BYTES);
    for (int i = 0; i < N_B; i++)
        setup.ids[N_A + i] += setup.ids[N_A + i] == PAD;
    document docs[] = {setup.docs[0], setup.docs[1], setup.docs[1], setup.docs[0]};
    docs[1].grids = docs[2].grids = clip;
    docs[1].n_images = docs[2].n_images = 1;
    docs[1].patches = docs[2].patches = list;
    docs[2].shared = true;
    assert_ok(row_build(docs, 4, &memory, &packed));
    assert_ok(row_check(&packed, "test"));
    assert_int_equal(packed.n_items, 5);
    assert_int_equal(packed.n_patches, 96);
    assert_int_equal(packed.n_video_patches, 32);
    const int32_t grids[5][3] = {{1, 4, 6}, {1, 6, 4}, {2, 4, 4}, {1, 4, 6}, {1, 6, 4}};
    assert_memory_equal(packed.grid_thw, grids, sizeof grids);
    assert_true(packed.items[2].is_video && !packed.items[1].is_video && !packed.items[3].is_video);
    assert_memory_equal(packed.items[2].patches, both, sizeof both);
    for (int64_t i = 0; i < 96; i++)
        assert_int_equal(pixel(&packed, i, 0), 1 + i / 24 % 2);
    /* its positions are those that its frames would have as pictures */
    for (int64_t i = 0; i < N_B; i++) {
        const int64_t at = N_A + i, again = N_A + N_B + i;
        assert_int_equal(packed.position_ids[at], golden[0][N_A + i]);
        assert_int_equal(packed.visual_row[at], packed.visual_row[again]);
    }
    const int32_t pair[] = {12, 13, 14, 15};
    assert_memory_equal(packed.visual_row + N_A + at_b[0], pair, sizeof pair);
    assert_int_equal(packed.visual_row[N_A + at_b[1]], 16);
    assert_int_equal(packed.visual_row[N_A + 2 * N_B + at_a[0]], 20);
    docs[1].text.n_runs = 1; /* now its text has room for one pair only */
    assert_fails(ST_BAD_INPUT, row_build(docs, 4, &memory, &packed), "sample 900: image 0");
    arena_done(&memory);
}

/* A bad sample keeps its tokens and its place, so no other document moves. */
static void test_row_build__quarantined_keeps_its_place(void **state)
{
    static fixture setup;
    arena memory;
    row whole, packed;
    (void)state;
    fixture_make(&setup);
    arena_init(&memory, 0);
    assert_ok(row_build(setup.docs, 3, &memory, &whole));
    setup.docs[1].quarantined = true;
    assert_ok(row_build(setup.docs, 3, &memory, &packed));
    assert_ok(row_check(&packed, "test"));
    assert_memory_equal(packed.input_ids, whole.input_ids, TOKENS * sizeof *packed.input_ids);
    assert_memory_equal(packed.position_ids, whole.position_ids, sizeof golden);
    assert_memory_equal(packed.visual_row, whole.visual_row, TOKENS * sizeof *packed.visual_row);
    for (int i = 0; i < TOKENS; i++)
        assert_int_equal(packed.labels[i], i >= N_A && i < N_A + N_B ? NO_LABEL : whole.labels[i]);
    for (int64_t i = 0; i < packed.n_patches; i++)
        for (int64_t at = 0; at < PATCH_BYTES; at++)
            assert_int_equal(pixel(&packed, i, at), i < 48 ? pixel(&whole, i, at) : 0);
    setup.docs[1].quarantined = false;
    /* without patches the pixels are zeros and labels stay, which is how rows without pixels are
     * made */
    setup.docs[1].patches = NULL;
    assert_ok(row_build(setup.docs, 3, &memory, &packed));
    assert_memory_equal(packed.labels, whole.labels, TOKENS * sizeof *packed.labels);
    assert_int_equal(pixel(&packed, 60, 0), 0);
    arena_done(&memory);
}

static void test_row_build__empty_and_refused(void **state)
{
    static fixture setup;
    arena memory;
    row packed;
    (void)state;
    fixture_make(&setup);
    arena_init(&memory, 0);
    assert_ok(row_build(NULL, 0, &memory, &packed));
    assert_ok(row_check(&packed, "test"));
    assert_int_equal(packed.n_tokens, 0);
    setup.image_at[1] = 16; /* its six image tokens would end after the document */
    assert_fails(ST_BAD_INPUT, row_build(setup.docs, 3, &memory, &packed), "sample 7: image 1");
    setup.image_at[1] = 9; /* it would lie inside the first image */
    assert_fails(ST_BAD_INPUT, row_build(setup.docs, 3, &memory, &packed), "sample 7: image 1");
    setup.docs[0].text.count = 0;
    assert_fails(ST_BAD_INPUT, row_build(setup.docs, 3, &memory, &packed),
                 "sample 7 has no tokens");
    arena_done(&memory);
}

enum { SHARED = 20, BRANCHES = 3, LONGEST = SHARED + 9 };

/* Samples that begin with the same SHARED tokens, two pictures among them, and go on differently:
 * alone [0, BRANCHES), and as a prefix with branches in docs. */
typedef struct family {
    fixture pictures;
    int32_t ids[BRANCHES][LONGEST], labels[BRANCHES][LONGEST];
    float weights[BRANCHES][LONGEST];
    document alone[BRANCHES], docs[1 + BRANCHES];
} family;

static void family_make(family *related)
{
    fixture_make(&related->pictures);
    const document *of = &related->pictures.docs[0];
    for (int branch = 0; branch < BRANCHES; branch++) {
        const int count = SHARED + 2 + 3 * branch;
        for (int i = 0; i < count; i++) {
            related->ids[branch][i] = i < SHARED ? of->text.ids[i] : 500 + 100 * branch + i;
            related->labels[branch][i] = i <= SHARED ? NO_LABEL : related->ids[branch][i];
            related->weights[branch][i] = i <= SHARED ? 1.0F : 0.5F + (float)branch;
        }
        related->alone[branch] = *of;
        related->alone[branch].sample_id = 40 + (uint64_t)branch;
        related->alone[branch].text = (chat_text){.ids = related->ids[branch],
                                                  .labels = related->labels[branch],
                                                  .count = count,
                                                  .run_at = related->pictures.image_at,
                                                  .n_runs = 2,
                                                  .weights = related->weights[branch]};
        related->docs[1 + branch] = related->alone[branch];
        related->docs[1 + branch].before = SHARED;
        related->docs[1 + branch].patches = NULL;
    }
    related->docs[0] = related->alone[0];
    related->docs[0].part = -1;
    related->docs[0].text.count = SHARED;
    related->docs[0].branches = BRANCHES;
}

/* Asserts that count tokens of a row from `at` on are those of another from `alone` on. A prefix
 * has the labels and weights of no sample. */
static void assert_same_tokens(const row *packed, int64_t at, const row *other, int64_t alone,
                               int64_t count)
{
    for (int64_t j = 0; j < count; j++) {
        assert_int_equal(packed->input_ids[at + j], other->input_ids[alone + j]);
        assert_int_equal(packed->labels[at + j], other->labels[alone + j]);
        assert_float_equal(packed->loss_weight[at + j], other->loss_weight[alone + j], 0);
        for (int axis = 0; axis < 3; axis++)
            assert_int_equal(packed->position_ids[axis * packed->n_tokens + at + j],
                             other->position_ids[axis * other->n_tokens + alone + j]);
    }
}

/* The tokens of a prefix and its branches are those that each sample has in a row without prefixes,
 * one by one, and so are the documents around them. */
static void test_row_build__a_prefix_and_its_branches(void **state)
{
    (void)state;
    static family related;
    arena memory;
    row packed, apart;
    arena_init(&memory, 0);
    family_make(&related);
    const document *doc = &related.pictures.docs[2], *branch = &related.pictures.docs[1];
    const document docs[] = {
        *doc, related.docs[0], related.docs[1], related.docs[2], related.docs[3], *branch};
    const document samples[] = {*doc, related.alone[0], related.alone[1], related.alone[2],
                                *branch};
    assert_ok(row_build(docs, 6, &memory, &packed));
    assert_ok(row_check(&packed, "with a prefix"));
    assert_ok(row_build(samples, 5, &memory, &apart));
    assert_ok(row_check(&apart, "apart"));
    const int32_t prefix[] = {-1, -1, 1, 1, 1, -1}, parts[] = {0, -1, 0, 0, 0, 2};
    const uint64_t id[] = {8, 40, 40, 41, 42, 900};
    assert_memory_equal(packed.doc_prefix, prefix, sizeof prefix);
    assert_memory_equal(packed.doc_part, parts, sizeof parts);
    assert_memory_equal(packed.doc_sample_id, id, sizeof id);
    assert_same_tokens(&packed, 0, &apart, 0, N_C);
    assert_same_tokens(&packed, packed.cu_seqlens[1], &apart, apart.cu_seqlens[1], SHARED);
    for (int k = 0; k < BRANCHES; k++) {
        const int64_t count = apart.cu_seqlens[k + 2] - apart.cu_seqlens[k + 1] - SHARED;
        assert_int_equal(packed.cu_seqlens[k + 3] - packed.cu_seqlens[k + 2], count);
        assert_int_equal(row_tokens_before(&packed, k + 2), SHARED);
        assert_same_tokens(&packed, packed.cu_seqlens[k + 2], &apart,
                           apart.cu_seqlens[k + 1] + SHARED, count);
    }
    assert_same_tokens(&packed, packed.cu_seqlens[5], &apart, apart.cu_seqlens[4], N_B);
    /* the pictures are listed once, and only the prefix shows them */
    assert_int_equal(packed.n_items, 4);
    assert_int_equal(packed.n_patches, 24 + 24 + 16 + 16);
    assert_memory_equal(packed.visual_row + packed.cu_seqlens[1],
                        apart.visual_row + apart.cu_seqlens[1], SHARED * sizeof *packed.visual_row);
    for (int32_t token = packed.cu_seqlens[2]; token < packed.cu_seqlens[5]; token++)
        assert_int_equal(packed.visual_row[token], -1);
    for (int64_t i = 0; i < 48; i++)
        assert_int_equal(pixel(&packed, i, 0), 1 + i / 24);
    arena_done(&memory);
}

/* A question that is bad keeps its tokens and loses its labels; the picture stays for the others
 * until all of them are bad. */
static void test_row_build__a_quarantined_branch(void **state)
{
    (void)state;
    static family related;
    arena memory;
    row packed, good;
    arena_init(&memory, 0);
    family_make(&related);
    assert_ok(row_build(related.docs, 4, &memory, &good));
    related.docs[2].quarantined = true;
    assert_ok(row_build(related.docs, 4, &memory, &packed));
    assert_ok(row_check(&packed, "one is bad"));
    for (int32_t token = 0; token < packed.n_tokens; token++) {
        const bool bad = token >= packed.cu_seqlens[2] && token < packed.cu_seqlens[3];
        assert_int_equal(packed.labels[token], bad ? NO_LABEL : good.labels[token]);
        assert_int_equal(packed.input_ids[token], good.input_ids[token]);
    }
    assert_int_equal(pixel(&packed, 47, 0), 2);
    for (int k = 0; k < 4; k++)
        related.docs[k].quarantined = true;
    assert_ok(row_build(related.docs, 4, &memory, &packed));
    assert_ok(row_check(&packed, "all are bad"));
    assert_memory_equal(packed.position_ids, good.position_ids,
                        3 * (size_t)packed.n_tokens * sizeof *packed.position_ids);
    for (int64_t i = 0; i < 48; i++)
        assert_int_equal(pixel(&packed, i, 0), 0);
    arena_done(&memory);
}

/* What the plan says of a prefix must be true of the texts, or labels would be trained in another
 * context than their own. */
static void test_row_build__a_prefix_that_is_none(void **state)
{
    (void)state;
    static family related;
    arena memory;
    row packed;
    arena_init(&memory, 0);
#define WRONG(change, words)                                                                       \
    do {                                                                                           \
        family_make(&related);                                                                     \
        change;                                                                                    \
        assert_fails(ST_INTERNAL, row_build(related.docs, 4, &memory, &packed), words);            \
    } while (0)
    WRONG(related.ids[1][3]++, "sample 41 does not begin with the 20 tokens of its prefix");
    WRONG(related.labels[1][SHARED] = 1, "sample 41 does not begin");
    WRONG(related.labels[0][2] = 1, "sample 40 does not begin");
    WRONG(related.docs[2].before = SHARED - 1, "sample 41 has 25 tokens");
    WRONG(related.docs[3].text.count = SHARED, "sample 42 has 20 tokens");
    WRONG(related.docs[0].branches = 4, "still needs 1 branches");
    WRONG(related.docs[0].branches = 2, "is a branch, but of no prefix");
    WRONG(related.docs[0].branches = 0, "is a branch, but of no prefix");
    /* the second picture would be left to the branches */
    WRONG(related.docs[0].n_images = 1;
          related.docs[0].text.count = related.docs[1].before = 12, "visual ones up to 19");
#undef WRONG
    family_make(&related);
    related.docs[0].text.count = 15; /* cuts a picture */
    assert_fails(ST_BAD_INPUT, row_build(related.docs, 4, &memory, &packed), "sample 40: image 1");
    arena_done(&memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_positions__worked_examples),
        cmocka_unit_test(test_row_build__packs_documents),
        cmocka_unit_test(test_row_build__shared_images),
        cmocka_unit_test(test_row_build__clips),
        cmocka_unit_test(test_row_build__quarantined_keeps_its_place),
        cmocka_unit_test(test_row_build__empty_and_refused),
        cmocka_unit_test(test_row_build__a_prefix_and_its_branches),
        cmocka_unit_test(test_row_build__a_quarantined_branch),
        cmocka_unit_test(test_row_build__a_prefix_that_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
