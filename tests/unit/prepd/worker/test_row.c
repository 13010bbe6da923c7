/* Tests of row.h: positions and whole rows equal the worked examples of trainer/model/equations.md,
 * and documents may share pictures, show clips, or be quarantined. */
#include <string.h>

#include "prepd/worker/row.h"
#include "tests/harness.h"

enum { PAD = 2003, N_A = 21, N_B = 15, N_C = 10, N = N_A + N_B + N_C };

static const fit_grid grids_a[] = {{64, 96, 4, 6}, {96, 64, 6, 4}};
/* a video as two single frames */
static const fit_grid grids_b[] = {{64, 64, 4, 4}, {64, 64, 4, 4}};
static const int64_t at_a[] = {4, 13}, at_b[] = {3, 9};

static const int32_t golden[3][N] = {
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
    int32_t ids[N], labels[N];
    int64_t image_at[4];
    uint8_t patches[4][24 * PATCH_BYTES];
    uint8_t *lists[4];
    document docs[3];
} fixture;

static void fixture_make(fixture *f)
{
    memset(f, 0, sizeof *f);
    memcpy(f->image_at, at_a, sizeof at_a);
    memcpy(f->image_at + 2, at_b, sizeof at_b);
    for (int i = 0; i < N; i++)
        f->ids[i] = f->labels[i] = 100 + i;
    for (int k = 0; k < 4; k++) {
        const int start = k < 2 ? 0 : N_A;
        const int64_t n = fit_tokens(k < 2 ? grids_a[k] : grids_b[k - 2]);
        for (int64_t i = 0; i < n; i++) {
            f->ids[start + f->image_at[k] + i] = PAD;
            f->labels[start + f->image_at[k] + i] = NO_LABEL;
        }
        memset(f->patches[k], k + 1, sizeof f->patches[k]);
        f->lists[k] = f->patches[k];
    }
    f->docs[0] = (document){
        7, 0, {f->ids, f->labels, N_A, 9, f->image_at, 2, NULL}, grids_a, 2, f->lists, false};
    f->docs[1] =
        (document){900,     2, {f->ids + N_A, f->labels + N_A, N_B, 7, f->image_at + 2, 2, NULL},
                   grids_b, 2, f->lists + 2,
                   false};
    f->docs[2] = (document){
        8,    0,    {f->ids + N_A + N_B, f->labels + N_A + N_B, N_C, 10, NULL, 0, NULL}, NULL, 0,
        NULL, false};
}

/* Byte `at` of patch i, counted through all pictures of the row. */
static int pixel(const row *r, int64_t i, int64_t at)
{
    int64_t item = 0, n;
    for (;; item++, i -= n) {
        const int32_t *g = r->grid_thw + 3 * item;
        n = r->items[item].is_video ? 0 : (int64_t)g[0] * g[1] * g[2];
        if (i < n)
            return r->items[item].patches[i * PATCH_BYTES + at];
    }
}

static void test_row_positions__worked_examples(void **state)
{
    int32_t position[3 * N];
    (void)state;
    row_positions(N_A, at_a, grids_a, 2, position, N);
    row_positions(N_B, at_b, grids_b, 2, position + N_A, N);
    row_positions(N_C, NULL, NULL, 0, position + N_A + N_B, N);
    assert_memory_equal(position, golden, sizeof golden);
}

static void test_row_build__packs_documents(void **state)
{
    static const int32_t borders[] = {0, 21, 36, 46};
    static const int32_t grid[] = {1, 4, 6, 1, 6, 4, 1, 4, 4, 1, 4, 4};
    static fixture f;
    arena a;
    row r;
    (void)state;
    fixture_make(&f);
    arena_init(&a, 0);
    assert_ok(row_build(f.docs, 3, &a, &r));
    assert_ok(row_check(&r, "test"));
    assert_int_equal(r.n_tokens, N);
    assert_int_equal(r.n_patches, 24 + 24 + 16 + 16);
    assert_int_equal(r.n_video_patches, 0);
    assert_memory_equal(r.cu_seqlens, borders, sizeof borders);
    assert_int_equal(r.n_items, 4);
    assert_memory_equal(r.grid_thw, grid, sizeof grid);
    assert_memory_equal(r.position_ids, golden, sizeof golden);
    assert_memory_equal(r.input_ids, f.ids, sizeof f.ids);
    int32_t next = 0;
    for (int i = 0; i < N; i++) {
        const bool first = i == 0 || i == N_A || i == N_A + N_B;
        assert_int_equal(r.labels[i], first ? NO_LABEL : f.labels[i]);
        assert_int_equal(r.visual_row[i], f.ids[i] == PAD ? next++ : -1);
    }
    assert_int_equal(next, r.n_patches / 4);
    static const int64_t ends[] = {24, 48, 64, 80};
    for (int64_t i = 0, k = 0; i < r.n_patches; i++) {
        k += i == ends[k];
        assert_int_equal(pixel(&r, i, 0), k + 1);
        assert_int_equal(pixel(&r, i, PATCH_BYTES - 1), k + 1);
    }
    assert_int_equal(r.doc_sample_id[1], 900);
    assert_int_equal(r.doc_part[1], 2);
    arena_done(&a);
}

/* A document that shares the pictures of the one before it has the same visual rows and positions
 * and adds no pictures, even if the one before is quarantined. */
static void test_row_build__shared_images(void **state)
{
    static fixture f;
    arena a;
    row r;
    (void)state;
    arena_init(&a, 0);
    for (int bad = 0; bad < 2; bad++) {
        fixture_make(&f);
        document docs[] = {f.docs[0], f.docs[0], f.docs[1], f.docs[1]};
        docs[1].shared = docs[3].shared = true;
        docs[0].quarantined = bad != 0;
        assert_ok(row_build(docs, 4, &a, &r));
        assert_ok(row_check(&r, "test"));
        assert_int_equal(r.n_items, 4);
        assert_int_equal(r.n_patches, 24 + 24 + 16 + 16);
        assert_memory_equal(r.visual_row, r.visual_row + N_A, N_A * sizeof(int32_t));
        assert_memory_equal(r.visual_row + 2 * N_A, r.visual_row + 2 * N_A + N_B,
                            N_B * sizeof(int32_t));
        assert_memory_equal(r.position_ids, r.position_ids + N_A, N_A * sizeof(int32_t));
        for (int64_t i = 0, k = 0; i < r.n_patches; i++) {
            static const int64_t ends[] = {24, 48, 64, 80};
            k += i == ends[k];
            assert_int_equal(pixel(&r, i, 0), k + 1);
        }
    }
    document wrong[] = {f.docs[0], f.docs[1]};
    wrong[1].shared = true;
    assert_fails(ST_BAD_INPUT, row_build(wrong, 2, &a, &r), "shows others");
    assert_fails(ST_BAD_INPUT, row_build(wrong + 1, 1, &a, &r), "shows others");
    arena_done(&a);
}

/* A clip of two pairs of frames among pictures, and a document that shares it. It is one item with
 * a time of 2; its patches are in an array of their own, and its visual rows are counted with those
 * of the pictures. */
static void test_row_build__clips(void **state)
{
    static const fit_grid clip[] = {{64, 64, 4, 4, 2}};
    static uint8_t both[2 * 16 * VIDEO_PATCH_BYTES], *list[] = {both};
    static fixture f;
    arena a;
    row r;
    (void)state;
    arena_init(&a, 0);
    fixture_make(&f);
    for (int i = 0; i < 32; i++)
        memset(both + (size_t)i * VIDEO_PATCH_BYTES, 50 + i, VIDEO_PATCH_BYTES);
    for (int i = 0; i < N_B; i++)
        f.ids[N_A + i] += f.ids[N_A + i] == PAD;
    document docs[] = {f.docs[0], f.docs[1], f.docs[1], f.docs[0]};
    docs[1].grids = docs[2].grids = clip;
    docs[1].n_images = docs[2].n_images = 1;
    docs[1].patches = docs[2].patches = list;
    docs[2].shared = true;
    assert_ok(row_build(docs, 4, &a, &r));
    assert_ok(row_check(&r, "test"));
    assert_int_equal(r.n_items, 5);
    assert_int_equal(r.n_patches, 96);
    assert_int_equal(r.n_video_patches, 32);
    const int32_t grids[5][3] = {{1, 4, 6}, {1, 6, 4}, {2, 4, 4}, {1, 4, 6}, {1, 6, 4}};
    assert_memory_equal(r.grid_thw, grids, sizeof grids);
    assert_true(r.items[2].is_video && !r.items[1].is_video && !r.items[3].is_video);
    assert_memory_equal(r.items[2].patches, both, sizeof both);
    for (int64_t i = 0; i < 96; i++)
        assert_int_equal(pixel(&r, i, 0), 1 + i / 24 % 2);
    /* its positions are those that its frames would have as pictures */
    for (int64_t i = 0; i < N_B; i++) {
        const int64_t at = N_A + i, again = N_A + N_B + i;
        assert_int_equal(r.position_ids[at], golden[0][N_A + i]);
        assert_int_equal(r.visual_row[at], r.visual_row[again]);
    }
    const int32_t pair[] = {12, 13, 14, 15};
    assert_memory_equal(r.visual_row + N_A + at_b[0], pair, sizeof pair);
    assert_int_equal(r.visual_row[N_A + at_b[1]], 16);
    assert_int_equal(r.visual_row[N_A + 2 * N_B + at_a[0]], 20);
    docs[1].text.n_runs = 1; /* now its text has room for one pair only */
    assert_fails(ST_BAD_INPUT, row_build(docs, 4, &a, &r), "sample 900: image 0");
    arena_done(&a);
}

/* A bad sample keeps its tokens and its place, so no other document moves. */
static void test_row_build__quarantined_keeps_its_place(void **state)
{
    static fixture f;
    arena a;
    row whole, r;
    (void)state;
    fixture_make(&f);
    arena_init(&a, 0);
    assert_ok(row_build(f.docs, 3, &a, &whole));
    f.docs[1].quarantined = true;
    assert_ok(row_build(f.docs, 3, &a, &r));
    assert_ok(row_check(&r, "test"));
    assert_memory_equal(r.input_ids, whole.input_ids, N * sizeof *r.input_ids);
    assert_memory_equal(r.position_ids, whole.position_ids, sizeof golden);
    assert_memory_equal(r.visual_row, whole.visual_row, N * sizeof *r.visual_row);
    for (int i = 0; i < N; i++)
        assert_int_equal(r.labels[i], i >= N_A && i < N_A + N_B ? NO_LABEL : whole.labels[i]);
    for (int64_t i = 0; i < r.n_patches; i++)
        for (int64_t at = 0; at < PATCH_BYTES; at++)
            assert_int_equal(pixel(&r, i, at), i < 48 ? pixel(&whole, i, at) : 0);
    f.docs[1].quarantined = false;
    /* without patches the pixels are zeros and labels stay, which is how rows without pixels are
     * made */
    f.docs[1].patches = NULL;
    assert_ok(row_build(f.docs, 3, &a, &r));
    assert_memory_equal(r.labels, whole.labels, N * sizeof *r.labels);
    assert_int_equal(pixel(&r, 60, 0), 0);
    arena_done(&a);
}

static void test_row_build__empty_and_refused(void **state)
{
    static fixture f;
    arena a;
    row r;
    (void)state;
    fixture_make(&f);
    arena_init(&a, 0);
    assert_ok(row_build(NULL, 0, &a, &r));
    assert_ok(row_check(&r, "test"));
    assert_int_equal(r.n_tokens, 0);
    f.image_at[1] = 16; /* its six image tokens would end after the document */
    assert_fails(ST_BAD_INPUT, row_build(f.docs, 3, &a, &r), "sample 7: image 1");
    f.image_at[1] = 9; /* it would lie inside the first image */
    assert_fails(ST_BAD_INPUT, row_build(f.docs, 3, &a, &r), "sample 7: image 1");
    f.docs[0].text.count = 0;
    assert_fails(ST_BAD_INPUT, row_build(f.docs, 3, &a, &r), "sample 7 has no tokens");
    arena_done(&a);
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
