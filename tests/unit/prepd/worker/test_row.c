/* Tests of row.h: positions and whole rows equal the worked examples of trainer/model/equations.md,
 * documents may share pictures, show clips, or be quarantined, and samples that share a prefix have
 * in the row what each has alone. */
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

enum { P = 20, BRANCHES = 3, LONGEST = P + 9 };

/* Samples that begin with the same P tokens, two pictures among them, and go on differently: alone
 * [0, BRANCHES), and as a prefix with branches in docs. */
typedef struct family {
    fixture pictures;
    int32_t ids[BRANCHES][LONGEST], labels[BRANCHES][LONGEST];
    float weights[BRANCHES][LONGEST];
    document alone[BRANCHES], docs[1 + BRANCHES];
} family;

static void family_make(family *f)
{
    fixture_make(&f->pictures);
    const document *of = &f->pictures.docs[0];
    for (int b = 0; b < BRANCHES; b++) {
        const int n = P + 2 + 3 * b;
        for (int i = 0; i < n; i++) {
            f->ids[b][i] = i < P ? of->text.ids[i] : 500 + 100 * b + i;
            f->labels[b][i] = i <= P ? NO_LABEL : f->ids[b][i];
            f->weights[b][i] = i <= P ? 1.0F : 0.5F + (float)b;
        }
        f->alone[b] = *of;
        f->alone[b].sample_id = 40 + (uint64_t)b;
        f->alone[b].text = (chat_text){.ids = f->ids[b],
                                       .labels = f->labels[b],
                                       .count = n,
                                       .run_at = f->pictures.image_at,
                                       .n_runs = 2,
                                       .weights = f->weights[b]};
        f->docs[1 + b] = f->alone[b];
        f->docs[1 + b].before = P;
        f->docs[1 + b].patches = NULL;
    }
    f->docs[0] = f->alone[0];
    f->docs[0].part = -1;
    f->docs[0].text.count = P;
    f->docs[0].branches = BRANCHES;
}

/* Asserts that n tokens of a row from `at` on are those of another from `alone` on. A prefix has
 * the labels and weights of no sample. */
static void assert_same_tokens(const row *r, int64_t at, const row *other, int64_t alone, int64_t n)
{
    for (int64_t j = 0; j < n; j++) {
        assert_int_equal(r->input_ids[at + j], other->input_ids[alone + j]);
        assert_int_equal(r->labels[at + j], other->labels[alone + j]);
        assert_float_equal(r->loss_weight[at + j], other->loss_weight[alone + j], 0);
        for (int axis = 0; axis < 3; axis++)
            assert_int_equal(r->position_ids[axis * r->n_tokens + at + j],
                             other->position_ids[axis * other->n_tokens + alone + j]);
    }
}

/* The tokens of a prefix and its branches are those that each sample has in a row without prefixes,
 * one by one, and so are the documents around them. */
static void test_row_build__a_prefix_and_its_branches(void **state)
{
    (void)state;
    static family f;
    arena a;
    row r, apart;
    arena_init(&a, 0);
    family_make(&f);
    const document *c = &f.pictures.docs[2], *b = &f.pictures.docs[1];
    const document docs[] = {*c, f.docs[0], f.docs[1], f.docs[2], f.docs[3], *b};
    const document samples[] = {*c, f.alone[0], f.alone[1], f.alone[2], *b};
    assert_ok(row_build(docs, 6, &a, &r));
    assert_ok(row_check(&r, "with a prefix"));
    assert_ok(row_build(samples, 5, &a, &apart));
    assert_ok(row_check(&apart, "apart"));
    const int32_t prefix[] = {-1, -1, 1, 1, 1, -1}, parts[] = {0, -1, 0, 0, 0, 2};
    const uint64_t id[] = {8, 40, 40, 41, 42, 900};
    assert_memory_equal(r.doc_prefix, prefix, sizeof prefix);
    assert_memory_equal(r.doc_part, parts, sizeof parts);
    assert_memory_equal(r.doc_sample_id, id, sizeof id);
    assert_same_tokens(&r, 0, &apart, 0, N_C);
    assert_same_tokens(&r, r.cu_seqlens[1], &apart, apart.cu_seqlens[1], P);
    for (int k = 0; k < BRANCHES; k++) {
        const int64_t n = apart.cu_seqlens[k + 2] - apart.cu_seqlens[k + 1] - P;
        assert_int_equal(r.cu_seqlens[k + 3] - r.cu_seqlens[k + 2], n);
        assert_int_equal(row_tokens_before(&r, k + 2), P);
        assert_same_tokens(&r, r.cu_seqlens[k + 2], &apart, apart.cu_seqlens[k + 1] + P, n);
    }
    assert_same_tokens(&r, r.cu_seqlens[5], &apart, apart.cu_seqlens[4], N_B);
    /* the pictures are listed once, and only the prefix shows them */
    assert_int_equal(r.n_items, 4);
    assert_int_equal(r.n_patches, 24 + 24 + 16 + 16);
    assert_memory_equal(r.visual_row + r.cu_seqlens[1], apart.visual_row + apart.cu_seqlens[1],
                        P * sizeof *r.visual_row);
    for (int32_t t = r.cu_seqlens[2]; t < r.cu_seqlens[5]; t++)
        assert_int_equal(r.visual_row[t], -1);
    for (int64_t i = 0; i < 48; i++)
        assert_int_equal(pixel(&r, i, 0), 1 + i / 24);
    arena_done(&a);
}

/* A question that is bad keeps its tokens and loses its labels; the picture stays for the others
 * until all of them are bad. */
static void test_row_build__a_quarantined_branch(void **state)
{
    (void)state;
    static family f;
    arena a;
    row r, good;
    arena_init(&a, 0);
    family_make(&f);
    assert_ok(row_build(f.docs, 4, &a, &good));
    f.docs[2].quarantined = true;
    assert_ok(row_build(f.docs, 4, &a, &r));
    assert_ok(row_check(&r, "one is bad"));
    for (int32_t t = 0; t < r.n_tokens; t++) {
        const bool bad = t >= r.cu_seqlens[2] && t < r.cu_seqlens[3];
        assert_int_equal(r.labels[t], bad ? NO_LABEL : good.labels[t]);
        assert_int_equal(r.input_ids[t], good.input_ids[t]);
    }
    assert_int_equal(pixel(&r, 47, 0), 2);
    for (int k = 0; k < 4; k++)
        f.docs[k].quarantined = true;
    assert_ok(row_build(f.docs, 4, &a, &r));
    assert_ok(row_check(&r, "all are bad"));
    assert_memory_equal(r.position_ids, good.position_ids,
                        3 * (size_t)r.n_tokens * sizeof *r.position_ids);
    for (int64_t i = 0; i < 48; i++)
        assert_int_equal(pixel(&r, i, 0), 0);
    arena_done(&a);
}

/* What the plan says of a prefix must be true of the texts, or labels would be trained in another
 * context than their own. */
static void test_row_build__a_prefix_that_is_none(void **state)
{
    (void)state;
    static family f;
    arena a;
    row r;
    arena_init(&a, 0);
#define WRONG(change, words)                                                                       \
    do {                                                                                           \
        family_make(&f);                                                                           \
        change;                                                                                    \
        assert_fails(ST_INTERNAL, row_build(f.docs, 4, &a, &r), words);                            \
    } while (0)
    WRONG(f.ids[1][3]++, "sample 41 does not begin with the 20 tokens of its prefix");
    WRONG(f.labels[1][P] = 1, "sample 41 does not begin");
    WRONG(f.labels[0][2] = 1, "sample 40 does not begin");
    WRONG(f.docs[2].before = P - 1, "sample 41 has 25 tokens");
    WRONG(f.docs[3].text.count = P, "sample 42 has 20 tokens");
    WRONG(f.docs[0].branches = 4, "lacks 1 branches");
    WRONG(f.docs[0].branches = 2, "is a branch, but of no prefix");
    WRONG(f.docs[0].branches = 0, "is a branch, but of no prefix");
    /* the second picture would be left to the branches */
    WRONG(f.docs[0].n_images = 1;
          f.docs[0].text.count = f.docs[1].before = 12, "visual ones up to 19");
#undef WRONG
    family_make(&f);
    f.docs[0].text.count = 15; /* cuts a picture */
    assert_fails(ST_BAD_INPUT, row_build(f.docs, 4, &a, &r), "sample 40: image 1");
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
        cmocka_unit_test(test_row_build__a_prefix_and_its_branches),
        cmocka_unit_test(test_row_build__a_quarantined_branch),
        cmocka_unit_test(test_row_build__a_prefix_that_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
