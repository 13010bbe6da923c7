/* Tests of units.c: long texts are split into parts, questions on one picture are kept together,
 * and pieces of a compressed file are read in order. */
#include "tests/harness.h"

#include <stdlib.h>
#include <string.h>

#include "tests/unit/prepd/conf_defaults.h"
#include "tests/unit/prepd/plan/fake_data.h"

static conf conf_of(int64_t tokens)
{
    conf c = conf_defaults();
    c.training_seq_len = tokens;
    c.training_seed = (int64_t)harness_seed();
    c.training_epochs = 2;
    c.data_window = 64;
    c.image_min_pixels = 1024;
    c.image_max_pixels = 16777216;
    return c;
}

static void test_split__every_token_is_in_one_part(void **state)
{
    (void)state;
    enum { N = 200, ROW = 128 };
    fake_sample s[N] = {0};
    int64_t wanted = 0, got = 0;
    int seen[N] = {0};
    for (int i = 0; i < N; i++) {
        s[i] = (fake_sample){.text_tokens = 1 + i * 7 % 300, .plain = true};
        wanted += s[i].text_tokens;
    }
    fake_data f;
    plan *p;
    arena a;
    conf c = conf_of(ROW);
    fake_data_init(&f, s, N);
    assert_ok(plan_new(&c, &f.base, f.index, PLAN_PACKED, &p));
    arena_init(&a, 0);
    for (uint64_t k = 0; k < plan_epoch_rows(p); k++) {
        planned_row r;
        assert_ok(plan_row(p, NULL, k, &a, &r));
        assert_in_range(r.tokens, 1, ROW);
        for (int64_t d = 0; d < r.n_docs; d++) {
            const planned_doc *doc = &r.docs[d];
            assert_int_equal(doc->whole, s[doc->sample].text_tokens);
            assert_int_equal(doc->from, doc->part * ROW);
            assert_int_equal(doc->tokens,
                             doc->whole - doc->from < ROW ? doc->whole - doc->from : ROW);
            seen[doc->sample] += 1 << (8 * doc->part); /* a byte for each of the parts 0, 1 and 2 */
            got += doc->tokens;
        }
    }
    assert_int_equal(got, wanted);
    for (int i = 0; i < N; i++)
        assert_int_equal(seen[i], s[i].text_tokens > 2 * ROW ? 0x10101
                                  : s[i].text_tokens > ROW   ? 0x101
                                                             : 1);
    plan_free(&p);
    c.data_overlong = OVERLONG_REFUSE;
    assert_ok(plan_new(&c, &f.base, f.index, PLAN_PACKED, &p));
    assert_true(plan_refused(p) > 0);
    plan_free(&p);
    c.data_overlong = OVERLONG_AUTO;
    for (int i = 0; i < N; i++)
        s[i].plain = false;
    assert_ok(plan_new(&c, &f.base, f.index, PLAN_PACKED, &p));
    assert_true(plan_refused(p) > 0);
    plan_free(&p);
    arena_done(&a);
    fake_data_done(&f);
}

/* Each picture has five questions, of which a row holds four. The patches of a picture count once
 * for all questions beside it. By the earlier rules four of the five share their picture. A unit of
 * four is more than half a row, so by the present rules it becomes two of two. */
static void check_shared_image(plan_kind kind, int64_t sharing)
{
    enum { N = 300, EACH = 5 };
    fake_sample s[N] = {0};
    int seen[N] = {0};
    for (int i = 0; i < N; i++) /* questions on one picture are far apart in the file */
        s[i] = (fake_sample){
            .text_tokens = 20 + i % 9, .width = 320, .height = 320, .image_of = 1 + i % (N / EACH)};
    fake_data f;
    plan *p;
    arena a;
    /* with 100 tokens for a picture, four questions fit and the fifth does not */
    conf c = conf_of(512);
    c.data_group = GROUP_SHARED_IMAGE;
    fake_data_init(&f, s, N);
    assert_ok(plan_new(&c, &f.base, f.index, kind, &p));
    arena_init(&a, 0);
    int64_t shared = 0;
    for (uint64_t k = 0; k < plan_epoch_rows(p); k++) {
        planned_row r;
        int64_t patches = 0;
        assert_ok(plan_row(p, NULL, k, &a, &r));
        assert_in_range(r.tokens, 1, 512);
        for (int64_t d = 0; d < r.n_docs; d++) {
            const planned_doc *doc = &r.docs[d];
            seen[doc->sample]++;
            if (doc->shared) {
                assert_true(d > 0);
                assert_int_equal(doc->images[0], r.docs[d - 1].images[0]);
                shared++;
            } else {
                patches += doc->patches;
            }
        }
        assert_int_equal(patches, r.patches);
    }
    for (int i = 0; i < N; i++)
        assert_int_equal(seen[i], 1);
    assert_int_equal(shared, sharing * N / EACH);
    plan_free(&p);
    arena_done(&a);
    fake_data_done(&f);
}

static void test_shared_image__questions_are_together_and_patches_count_once(void **state)
{
    (void)state;
    check_shared_image(PLAN_EARLIER, 3);
    check_shared_image(PLAN_PACKED, 2);
}

/* A window reads one or two neighbouring pieces. An epoch still has every sample once, in mixed
 * order. */
static void test_chunks__pieces_follow_each_other(void **state)
{
    (void)state;
    enum { N = 1000, PIECE = 100 };
    static fake_sample s[N];
    for (int i = 0; i < N; i++)
        s[i] = (fake_sample){.text_tokens = 50, .plain = true};
    fake_data f;
    plan *p;
    arena a;
    conf c = conf_of(500);
    fake_data_init(&f, s, N);
    f.per_chunk = PIECE;
    assert_ok(plan_new(&c, &f.base, f.index, PLAN_PACKED, &p));
    arena_init(&a, 0);
    for (int epoch = 0; epoch < 2; epoch++) {
        int seen[N] = {0}, ascending = 0;
        int64_t last = -1;
        const uint64_t rows = plan_epoch_rows(p);
        for (uint64_t k = epoch * rows; k < (epoch + 1) * rows; k++) {
            planned_row r;
            arena_reset(&a);
            assert_ok(plan_row(p, NULL, k, &a, &r));
            int in_row[N / PIECE] = {0};
            for (int64_t d = 0; d < r.n_docs; d++) {
                const int64_t i = r.docs[d].sample;
                seen[i]++;
                ascending += i == last + 1;
                last = i;
                in_row[i / PIECE]++;
            }
            int n = 0;
            for (int x = 0; x < N / PIECE; x++)
                n += in_row[x] > 0;
            assert_in_range(n, 1, 2); /* a window of 63 samples lies in one piece or in two */
        }
        for (int i = 0; i < N; i++)
            assert_int_equal(seen[i], 1);
        assert_true(ascending < N / 4); /* inside a window the order is mixed */
    }
    plan_free(&p);
    arena_done(&a);
    fake_data_done(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split__every_token_is_in_one_part),
        cmocka_unit_test(test_shared_image__questions_are_together_and_patches_count_once),
        cmocka_unit_test(test_chunks__pieces_follow_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
