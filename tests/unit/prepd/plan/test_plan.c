/* Tests of plan.h: the stream is a function of its inputs. Every usable sample comes once in an
 * epoch, rows keep their budgets, seeking gives the same rows as walking, and planning in pieces or
 * from a later epoch gives the same rows as planning at once. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/rng.h"
#include "tests/unit/prepd/conf_defaults.h"
#include "tests/unit/prepd/plan/fake_data.h"

static conf small_conf(void)
{
    conf c = conf_defaults();
    c.training_seq_len = 1024;
    c.training_global_batch_size = 8;
    c.training_seed = 7;
    c.data_window = 256;
    c.image_min_pixels = 1024;
    c.image_max_pixels = 16777216;
    return c;
}

/* A digest of the numbers, epochs, samples and grids of rows [from, to). */
static uint64_t row_range_digest(plan *p, row_range *s, uint64_t from, uint64_t to)
{
    hasher *h;
    arena a;
    arena_init(&a, 0);
    assert_ok(hasher_new(&h));
    for (uint64_t k = from; k < to; k++) {
        planned_row r;
        arena_reset(&a);
        assert_ok(plan_row(p, s, k, &a, &r));
        hasher_add_u64(h, r.number);
        hasher_add_u64(h, r.epoch);
        for (int64_t d = 0; d < r.n_docs; d++) {
            hasher_add_u64(h, (uint64_t)r.docs[d].sample);
            hasher_add_u64(h, (uint64_t)r.docs[d].tokens);
            for (int32_t g = 0; g < r.docs[d].n_images; g++)
                hasher_add_u64(h, (uint64_t)fit_patches(r.docs[d].grids[g]));
        }
    }
    uint64_t v = load_u64(hasher_value(h).bytes);
    hasher_free(&h);
    arena_done(&a);
    return v;
}

static uint64_t rows_digest(plan *p, uint64_t from, uint64_t to)
{
    return row_range_digest(p, NULL, from, to);
}

static void mixed_samples(fake_sample *s, int64_t n)
{
    fake_vqa_lengths(harness_seed(), s, n);
    for (int64_t i = 0; i < n; i++) {
        if (i % 7 == 3)
            s[i].cause = "bad on purpose";
        if (i % 11 == 5)
            s[i].width = s[i].height = 0; /* only text */
        if (i % 13 == 7)
            s[i].text_tokens = 1025; /* longer than a row */
    }
}

static void test_epoch__every_usable_sample_once(void **state)
{
    (void)state;
    enum { N = 1500 };
    fake_sample samples[N];
    fake_data f;
    plan *p;
    arena a;
    conf c = small_conf();
    arena_init(&a, 0);
    mixed_samples(samples, N);
    fake_data_init(&f, samples, N);
    for (int pack = 0; pack < 2; pack++) {
        c.data_pack = pack;
        assert_ok(plan_new(&c, &f.base, f.index, PLAN_PACKED, &p));
        int64_t usable = N - plan_refused(p);
        uint64_t row = 0;
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            int seen[N] = {0};
            int64_t count = 0;
            for (;; row++) {
                planned_row r;
                arena_reset(&a);
                assert_ok(plan_row(p, NULL, row, &a, &r));
                if (r.epoch != epoch)
                    break;
                int64_t tokens = 0, patches = 0;
                for (int64_t d = 0; d < r.n_docs; d++) {
                    seen[r.docs[d].sample]++;
                    count++;
                    tokens += r.docs[d].tokens;
                    patches += r.docs[d].patches;
                    assert_null(plan_cause(p, r.docs[d].sample));
                }
                assert_int_equal(tokens, r.tokens);
                assert_int_equal(patches, r.patches);
                assert_true(r.tokens <= plan_token_budget(p) && r.patches <= plan_patch_budget(p));
                assert_true(pack || r.n_docs == 1);
            }
            assert_int_equal(count, usable);
            for (int i = 0; i < N; i++) {
                assert_true(seen[i] <= 1);
                assert_int_equal(seen[i] == 0, plan_cause(p, i) != NULL);
            }
            if (epoch == 0)
                assert_int_equal(row, plan_epoch_rows(p));
        }
        assert_int_equal(plan_rows(p, NULL), UINT64_MAX);
        assert_string_equal(plan_cause(p, 3), "bad on purpose");
        assert_non_null(strstr(plan_cause(p, 7), "1025 tokens"));
        assert_non_null(strstr(plan_cause(p, 7), "training.seq_len"));
        plan_free(&p);
    }
    fake_data_done(&f);
    arena_done(&a);
}

static void test_stream__is_a_function_of_seed_and_epoch(void **state)
{
    (void)state;
    enum { N = 900 };
    fake_sample samples[N];
    fake_data f;
    plan *p, *q, *other, *plain;
    conf c = small_conf(), d = small_conf(), e = small_conf();
    fake_vqa_lengths(harness_seed(), samples, N);
    fake_data_init(&f, samples, N);
    d.training_seed = 8;
    e.data_shuffle = false;
    assert_ok(plan_new(&c, &f.base, f.index, PLAN_PACKED, &p));
    assert_ok(plan_new(&c, &f.base, f.index, PLAN_PACKED, &q));
    assert_ok(plan_new(&d, &f.base, f.index, PLAN_PACKED, &other));
    assert_ok(plan_new(&e, &f.base, f.index, PLAN_PACKED, &plain));
    uint64_t rows = plan_epoch_rows(p);
    assert_int_equal(rows_digest(p, 0, rows), rows_digest(q, 0, rows));
    assert_int_not_equal(rows_digest(p, 0, 20), rows_digest(other, 0, 20));
    assert_int_not_equal(rows_digest(p, 0, 20), rows_digest(plain, 0, 20));
    /* The second epoch has another order. */
    planned_row r, s;
    arena a;
    arena_init(&a, 0);
    assert_ok(plan_row(p, NULL, 0, &a, &r));
    assert_ok(plan_row(p, NULL, rows, &a, &s));
    assert_int_equal(s.epoch, 1);
    assert_int_not_equal(r.docs[0].sample, s.docs[0].sample);
    arena_done(&a);
    plan_free(&p);
    plan_free(&q);
    plan_free(&other);
    plan_free(&plain);
    fake_data_done(&f);
}

static void test_seek__equals_walking(void **state)
{
    (void)state;
    enum { N = 700 };
    fake_sample samples[N];
    fake_data f;
    plan *walk, *seek;
    conf c = small_conf();
    fake_vqa_lengths(harness_seed(), samples, N);
    fake_data_init(&f, samples, N);
    assert_ok(plan_new(&c, &f.base, f.index, PLAN_PACKED, &walk));
    uint64_t rows = 4 * plan_epoch_rows(walk);
    (void)rows_digest(walk, 0, rows);
    rng_key key = rng_key_make(harness_seed(), "seek");
    for (uint64_t k = 0; k < 12; k++) {
        uint64_t row = rng_below(key, k, rows);
        assert_ok(plan_new(&c, &f.base, f.index, PLAN_PACKED, &seek));
        assert_int_equal(rows_digest(seek, row, row + 3), rows_digest(walk, row, row + 3));
        assert_int_equal(rows_digest(seek, row / 2, row / 2 + 3),
                         rows_digest(walk, row / 2, row / 2 + 3));
        plan_free(&seek);
    }
    plan_free(&walk);
    fake_data_done(&f);
}

/* A plan that is made in pieces and walked by several at once has the stream of one that is made at
 * once and walked alone. */
static void test_prepare__in_pieces_and_for_several_walkers(void **state)
{
    (void)state;
    enum { N = 9000, WALKERS = 3 }; /* more samples than are planned in one piece */
    static fake_sample samples[N];
    fake_data f;
    plan *whole, *p;
    bool ready;
    conf c = small_conf();
    fake_vqa_lengths(harness_seed(), samples, N);
    fake_data_init(&f, samples, N);
    for (int shared = 0; shared < 2; shared++) {
        for (int endless = 0; endless < 2; endless++) {
            int64_t pieces = 0;
            c.data_group = shared ? GROUP_SHARED_IMAGE : GROUP_NONE;
            c.training_epochs = endless ? 0 : 2.5;
            assert_ok(plan_new(&c, &f.base, f.index, PLAN_PACKED, &whole));
            assert_ok(plan_begin(&c, &f.base, f.index, PLAN_PACKED, &p));
            assert_ok(plan_prepare(p, NULL, 0, 0, &ready)); /* without time nothing is done */
            assert_false(ready);
            /* With a microsecond of time, it does a few pieces at once. */
            for (; !ready; pieces++)
                assert_ok(plan_prepare(p, NULL, 0, clock_ns() + 1000, &ready));
            assert_in_range(pieces, 4, 10000);
            /* it is planned only as far as asked for */
            assert_int_equal(plan_rows(p, NULL), UINT64_MAX);
            assert_int_equal(plan_epoch_rows(p), plan_epoch_rows(whole));
            const uint64_t far = 2 * plan_epoch_rows(p);
            assert_ok(plan_prepare(p, NULL, far + 20, 0, &ready));
            assert_false(ready);
            for (; !ready; pieces++)
                assert_ok(plan_prepare(p, NULL, PLAN_ALL, clock_ns() + 1000, &ready));
            assert_int_equal(plan_rows(p, NULL), plan_rows(whole, NULL));
            assert_int_equal(plan_rows(p, NULL) == UINT64_MAX, endless);
            plan_walkers(p, WALKERS);
            for (uint64_t k = 0; k < 60; k++) {
                assert_int_equal(rows_digest(p, k, k + 1), rows_digest(whole, k, k + 1));
                assert_int_equal(rows_digest(p, far + k / 4, far + k / 4 + 1),
                                 rows_digest(whole, far + k / 4, far + k / 4 + 1));
                if (k == 40)
                    plan_walkers(p, 1);
            }
            plan_free(&p);
            assert_ok(plan_begin(&c, &f.base, f.index, PLAN_PACKED, &p));
            assert_ok(plan_prepare(p, NULL, 0, clock_ns() + 1000, &ready));
            plan_free(&p); /* freed while it is half planned */
            plan_free(&whole);
        }
    }
    fake_data_done(&f);
}

/* However many epochs there are, row 0 waits only for the first one. Later epochs are planned on
 * demand and are the same. */
static void test_epochs__are_planned_on_demand(void **state)
{
    (void)state;
    enum { N = 2000 };
    static fake_sample samples[N];
    const double epochs[] = {1e6, 3, 2.5, 0.5};
    fake_data f;
    plan *endless, *p, *whole;
    planned_row r;
    arena a;
    bool ready;
    conf c = small_conf();
    fake_vqa_lengths(harness_seed(), samples, N);
    fake_data_init(&f, samples, N);
    arena_init(&a, 0);
    assert_ok(plan_new(&c, &f.base, f.index, PLAN_PACKED, &endless));
    assert_true(plan_endless(endless));
    const uint64_t epoch = plan_epoch_rows(endless);
    for (int k = 0; k < 4; k++) {
        c.training_epochs = epochs[k];
        assert_ok(plan_begin(&c, &f.base, f.index, PLAN_PACKED, &p));
        assert_ok(plan_prepare(p, NULL, 0, INT64_MAX, &ready));
        assert_true(ready && !plan_endless(p));
        assert_int_equal(plan_epoch_rows(p), epoch);
        assert_int_equal(plan_rows(p, NULL) == UINT64_MAX, epochs[k] > 1);
        if (epochs[k] == 1e6) {
            assert_int_equal(rows_digest(p, 0, 3 * epoch), rows_digest(endless, 0, 3 * epoch));
            assert_int_equal(plan_rows(p, NULL), UINT64_MAX);
            plan_free(&p);
            continue;
        }
        assert_ok(plan_new(&c, &f.base, f.index, PLAN_PACKED, &whole));
        const uint64_t rows = plan_rows(whole, NULL);
        for (uint64_t row = 0; row < rows; row++)
            assert_int_equal(rows_digest(p, row, row + 1), rows_digest(whole, row, row + 1));
        assert_int_equal(plan_row(p, NULL, rows, &a, &r), ST_END);
        assert_int_equal(plan_rows(p, NULL), rows);
        plan_free(&p);
        plan_free(&whole);
    }
    plan_free(&endless);
    arena_done(&a);
    fake_data_done(&f);
}

/* A consumer that knows at which row its epoch begins gets the same rows and the same end without
 * waiting for the epochs before it. */
static void test_from__begins_at_an_epoch_whose_first_row_is_known(void **state)
{
    (void)state;
    enum { N = 2000 };
    static fake_sample samples[N];
    const double epochs[] = {0, 4, 3.5};
    fake_data f;
    plan *whole, *p;
    row_range *s, *same, *other;
    uint64_t first, begin;
    bool ready;
    conf c = small_conf();
    fake_vqa_lengths(harness_seed(), samples, N);
    fake_data_init(&f, samples, N);
    for (int k = 0; k < 3; k++) {
        c.training_epochs = epochs[k];
        assert_ok(plan_new(&c, &f.base, f.index, PLAN_PACKED, &whole));
        const uint64_t all = epochs[k] > 0 ? plan_rows(whole, NULL) : 4 * plan_epoch_rows(whole);
        (void)rows_digest(whole, 0, all);
        for (uint64_t row = plan_epoch_rows(whole); row < all; row += 97) {
            const uint64_t epoch = plan_epoch_of(whole, NULL, row, &begin);
            assert_in_range(begin, plan_epoch_rows(whole), row);
            assert_ok(plan_begin(&c, &f.base, f.index, PLAN_PACKED, &p));
            assert_ok(plan_from(p, epoch, begin, &s));
            assert_int_equal(plan_first_row(s), begin);
            assert_ok(plan_prepare(p, s, row, INT64_MAX, &ready));
            assert_ok(plan_prepare(p, NULL, plan_epoch_rows(p), 0, &ready));
            assert_true(!ready); /* of the epochs before, only the first is planned */
            assert_int_equal(row_range_digest(p, s, row, row + 3 < all ? row + 3 : all),
                             rows_digest(whole, row, row + 3 < all ? row + 3 : all));
            assert_int_equal(plan_epoch_of(p, s, row, &first), epoch);
            assert_int_equal(first, begin);
            assert_ok(plan_prepare(p, s, PLAN_ALL, INT64_MAX, &ready));
            assert_int_equal(plan_rows(p, s), plan_rows(whole, NULL));
            plan_leave(p, &s);
            plan_free(&p);
        }
        plan_free(&whole);
    }
    /* A far epoch costs no more. If a row is wrongly said to begin an epoch, only the consumer that
     * said so gets other rows. An impossible row is refused. */
    c.training_epochs = 1e6;
    assert_ok(plan_begin(&c, &f.base, f.index, PLAN_PACKED, &p));
    assert_ok(plan_from(p, 999999, 1u << 30, &s));
    assert_ok(plan_from(p, 999999, 1u << 30, &same));
    assert_ok(plan_from(p, 3, 12345, &other));
    assert_ptr_equal(s, same);
    assert_ok(plan_prepare(p, s, PLAN_ALL, INT64_MAX, &ready));
    assert_in_range(plan_rows(p, s), 1u << 30, (1u << 30) + N);
    assert_int_equal(plan_rows(p, NULL), UINT64_MAX);
    assert_int_not_equal(row_range_digest(p, other, 12345, 12350), rows_digest(p, 0, 5));
    plan_leave(p, &same);
    (void)row_range_digest(p, s, 1u << 30, (1u << 30) + 5); /* another consumer still holds it */
    plan_leave(p, &s);
    assert_null(s);
    assert_int_equal(plan_from(p, 1000000, 1u << 30, &s), ST_PROTOCOL);
    assert_int_equal(plan_from(p, 5, 4, &s), ST_PROTOCOL); /* an epoch has at least one row */
    assert_int_equal(plan_from(p, 0, 1, &s), ST_PROTOCOL);
    assert_int_equal(plan_from(p, 1, UINT64_MAX, &s), ST_PROTOCOL);
    assert_ok(plan_from(p, 0, 0, &s));
    assert_null(s); /* from its beginning, the stream needs no range */
    plan_free(&p);  /* while `other` is still held */
    fake_data_done(&f);
}

static int aspect(fit_grid g)
{
    return g.columns * 4 > g.rows * 5 ? 0 : g.rows * 4 > g.columns * 5 ? 2 : 1;
}

/* With data.resolution_class, most rows have pictures of one class, no sample is lost or repeated,
 * and there are not more rows. */
static void test_classes__most_rows_have_one(void **state)
{
    (void)state;
    enum { N = 12000 };
    static fake_sample samples[N];
    static int64_t seen[N];
    fake_data f;
    plan *p;
    arena a;
    conf c = small_conf();
    int64_t rows[2] = {0}, alike[2] = {0};
    arena_init(&a, 0);
    c.training_seq_len = 8192;
    c.data_window = 4096;
    fake_vqa_lengths(harness_seed(), samples, N);
    fake_data_init(&f, samples, N);
    for (int classes = 0; classes < 2; classes++) {
        c.data_resolution_class = classes;
        memset(seen, 0, sizeof seen);
        assert_ok(plan_new(&c, &f.base, f.index, PLAN_PACKED, &p));
        rows[classes] = (int64_t)plan_epoch_rows(p);
        for (uint64_t k = 0; k < plan_epoch_rows(p); k++) {
            planned_row r;
            bool same = true;
            arena_reset(&a);
            assert_ok(plan_row(p, NULL, k, &a, &r));
            assert_true(r.tokens <= 8192 && r.patches <= 4 * 8192 && r.n_docs > 0);
            for (int64_t d = 0; d < r.n_docs; d++) {
                seen[r.docs[d].sample]++;
                same &= aspect(r.docs[d].grids[0]) == aspect(r.docs[0].grids[0]);
            }
            alike[classes] += same;
        }
        for (int64_t i = 0; i < N; i++)
            assert_int_equal(seen[i], 1);
        char *text;
        size_t size;
        FILE *to = open_memstream(&text, &size);
        assert_ok(plan_report(p, to));
        fclose(to);
        assert_int_equal(strstr(text, "rows of one class:") != NULL, classes);
        free(text);
        plan_free(&p);
    }
    assert_true(alike[0] * 50 < rows[0] && alike[1] * 2 > rows[1]);
    assert_true(rows[1] <= rows[0]);
    fake_data_done(&f);
    arena_done(&a);
}

static void test_epochs__last_step_is_completed(void **state)
{
    (void)state;
    enum { N = 500 };
    fake_sample samples[N];
    fake_data f;
    plan *p;
    arena a;
    conf c = small_conf();
    arena_init(&a, 0);
    fake_vqa_lengths(harness_seed(), samples, N);
    fake_data_init(&f, samples, N);
    const double epochs[] = {1.0, 2.0, 0.25, 1.5};
    for (int k = 0; k < 4; k++) {
        c.training_epochs = epochs[k];
        c.training_global_batch_size = 7;
        assert_ok(plan_new(&c, &f.base, f.index, PLAN_PACKED, &p));
        uint64_t rows = plan_rows(p, NULL), full = 0, docs = 0;
        planned_row r;
        assert_int_equal(rows % 7, 0);
        for (uint64_t row = 0; row < rows; row++) {
            arena_reset(&a);
            assert_ok(plan_row(p, NULL, row, &a, &r));
            assert_true(r.n_docs > 0 || row >= rows - 6); /* empty rows come only at the end */
            full += r.n_docs > 0;
            docs += (uint64_t)r.n_docs;
        }
        assert_true(rows - full < 7);
        assert_int_equal(plan_row(p, NULL, rows, &a, &r), ST_END);
        if (epochs[k] == 1.0 || epochs[k] == 2.0)
            assert_int_equal(docs, (uint64_t)(N * epochs[k]));
        if (epochs[k] == 0.25)
            assert_int_equal(full, (plan_epoch_rows(p) + 3) / 4);
        plan_free(&p);
    }
    fake_data_done(&f);
    arena_done(&a);
}

static void test_samples__row_i_is_sample_i(void **state)
{
    (void)state;
    enum { N = 40 };
    fake_sample samples[N];
    fake_data f;
    plan *p;
    arena a;
    planned_row r;
    conf c = small_conf();
    arena_init(&a, 0);
    mixed_samples(samples, N);
    fake_data_init(&f, samples, N);
    assert_ok(plan_new(&c, &f.base, f.index, PLAN_SAMPLES, &p));
    assert_int_equal(plan_rows(p, NULL), N);
    for (uint64_t i = 0; i < N; i++) {
        assert_ok(plan_row(p, NULL, i, &a, &r));
        assert_int_equal(r.n_docs, plan_cause(p, (int64_t)i) ? 0 : 1);
        if (r.n_docs)
            assert_int_equal(r.docs[0].sample, i);
    }
    assert_int_equal(plan_row(p, NULL, N, &a, &r), ST_END);
    plan_free(&p);
    fake_data_done(&f);
    arena_done(&a);
}

static void test_oversize__is_shrunk_or_refused(void **state)
{
    (void)state;
    const fake_sample samples[] = {{100, 4000, 3000, NULL},
                                   {1000, 640, 480, NULL},
                                   {1024, 640, 480, NULL},
                                   {1024, 0, 0, NULL},
                                   {30, 100, 100, NULL}};
    fake_data f;
    plan *p;
    arena a;
    planned_row r;
    conf c = small_conf();
    arena_init(&a, 0);
    fake_data_init(&f, samples, 5);
    assert_ok(plan_new(&c, &f.base, f.index, PLAN_SAMPLES, &p));
    for (uint64_t i = 0; i < 2; i++) { /* the picture shrinks to the room that its text leaves */
        assert_ok(plan_row(p, NULL, i, &a, &r));
        assert_int_equal(r.n_docs, 1);
        assert_true(r.tokens <= 1024);
        assert_int_equal(r.tokens, samples[i].text_tokens + fit_tokens(r.docs[0].grids[0]));
    }
    assert_true(r.tokens > 1000);
    assert_non_null(plan_cause(p, 2)); /* the text leaves no token for the picture */
    assert_null(plan_cause(p, 3));
    assert_null(plan_cause(p, 4));
    plan_free(&p);
    c.data_patch_budget = 64;
    assert_ok(plan_new(&c, &f.base, f.index, PLAN_SAMPLES, &p));
    assert_ok(plan_row(p, NULL, 0, &a, &r));
    assert_true(r.patches <= 64 && r.patches >= 32);
    plan_free(&p);
    c.data_patch_budget = 0;
    c.data_oversize = OVERSIZE_REFUSE;
    assert_ok(plan_new(&c, &f.base, f.index, PLAN_SAMPLES, &p));
    assert_non_null(strstr(plan_cause(p, 0), "data.oversize: refuse"));
    assert_null(plan_cause(p, 4));
    plan_free(&p);
    fake_data_done(&f);
    arena_done(&a);
}

static void test_nothing_usable__says_why(void **state)
{
    (void)state;
    const fake_sample samples[] = {{10, 64, 64, "empty answer"}, {10, 64, 64, "other"}};
    fake_data f;
    plan *p = NULL;
    conf c = small_conf();
    fake_data_init(&f, samples, 2);
    assert_fails(ST_BAD_INPUT, plan_new(&c, &f.base, f.index, PLAN_PACKED, &p), "empty answer");
    assert_null(p);
    fake_data_done(&f);
    fake_data_init(&f, samples, 0);
    assert_fails(ST_BAD_INPUT, plan_new(&c, &f.base, f.index, PLAN_PACKED, &p),
                 "the data set holds no sample");
    assert_null(strstr(status_text(), "what is wrong"));
    fake_data_done(&f);
}

/* Finds in the report by how many percent the most expensive of 8 ranks is above the mean on
 * average. */
static double mean_step(const char *text)
{
    const char *balance = strstr(text, "balance: over 8 ranks the slowest is ");
    assert_non_null(balance);
    return strtod(balance + strlen("balance: over 8 ranks the slowest is "), NULL);
}

/* Finds in the report by how many percent the most expensive of 8 ranks is above the mean in the
 * worst step. */
static double worst_step(const char *text)
{
    const char *balance = strstr(text, "balance: over 8 ranks the slowest is ");
    assert_non_null(balance);
    print_message("%.*s\n", (int)strcspn(balance, "\n"), balance);
    balance = strstr(balance, "(worst step ");
    assert_non_null(balance);
    return strtod(balance + strlen("(worst step "), NULL);
}

/* With lengths like those of VQAv2 in rows of 8192 tokens, rows are well filled, each row fits the
 * last bucket, and ranks have an even load in every step. */
static void test_fill__vqa_lengths_at_8192(void **state)
{
    (void)state;
    enum { N = 20000 };
    static fake_sample samples[N];
    fake_data f;
    plan *p;
    arena a;
    conf c = small_conf();
    arena_init(&a, 0);
    c.training_seq_len = 8192;
    c.data_window = 4096;
    c.training_global_batch_size = 32;
    fake_vqa_lengths(harness_seed(), samples, N);
    fake_data_init(&f, samples, N);
    int64_t start = clock_ns();
    assert_ok(plan_new(&c, &f.base, f.index, PLAN_PACKED, &p));
    print_message("planned %d samples in %.0f ms\n", N, (double)(clock_ns() - start) / 1e6);
    int n_buckets;
    const shape_bucket *b = plan_buckets(p, &n_buckets);
    int64_t tokens = 0, rows = 0, in_buckets = 0;
    assert_in_range(n_buckets, 1, MAX_BUCKETS);
    for (uint64_t k = 0; k < plan_epoch_rows(p); k++, rows++) {
        planned_row r;
        arena_reset(&a);
        assert_ok(plan_row(p, NULL, k, &a, &r));
        tokens += r.tokens;
        const shape_bucket *last = &b[n_buckets - 1];
        assert_true(r.tokens <= last->tokens && r.patches <= last->patches &&
                    r.n_docs <= last->documents && r.n_docs <= last->images);
    }
    for (int k = 0; k < n_buckets; k++) {
        in_buckets += b[k].rows;
        if (k)
            assert_true(b[k].tokens >= b[k - 1].tokens && b[k].patches >= b[k - 1].patches);
    }
    assert_int_equal(in_buckets, rows);
    double fill = 100.0 * (double)tokens / (double)(rows * 8192);
    print_message("fill %.2f %%\n", fill);
    assert_true(fill >= 99.5);
    char *text;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    assert_ok(plan_report(p, to));
    fclose(to);
    print_message("%s", text);
    assert_true(worst_step(text) <= 3.0);
    assert_non_null(strstr(text, "resolution classes"));
    const char *greedy = strstr(text, "greedy packing over a buffer of 204 samples: ");
    assert_non_null(greedy);
    /* otherwise our packing would be no gain */
    assert_true(strtoll(strchr(greedy, ':') + 1, NULL, 10) > rows);
    free(text);
    c.training_global_batch_size = 8; /* each rank gets one row, so there is no choice */
    to = open_memstream(&text, &size);
    assert_ok(plan_report(p, to));
    fclose(to);
    assert_true(worst_step(text) <= 3.0);
    free(text);
    plan_free(&p);
    fake_data_done(&f);
    arena_done(&a);
}

/* Questions on a picture as VQAv2 has them: 3 or 4, 9 and more for a tenth, 25 and more for a
 * hundredth of the pictures, 274 at most. They are counted down from the largest numbers. */
static int64_t questions_of(int64_t picture, int64_t pictures)
{
    const double share = (double)picture / (double)pictures;
    if (picture == 0)
        return 274;
    if (share < 0.01)
        return 25 + (int64_t)(0.2 / (share + 0.002));
    if (share < 0.1)
        return 9 + (int64_t)(1.6 / (share + 0.01) - 14);
    return share < 0.2 ? 6 : share < 0.6 ? 4 : 3;
}

/* Plans questions on shared pictures with 8 rows a step and returns the report. */
static char *report_shared(const fake_sample *samples, int64_t n, plan_kind kind)
{
    fake_data f;
    plan *p;
    conf c = small_conf();
    char *text;
    size_t size;
    c.training_seq_len = 8192;
    c.data_window = 4096;
    c.training_global_batch_size = 8;
    c.data_group = GROUP_SHARED_IMAGE;
    fake_data_init(&f, samples, n);
    assert_ok(plan_new(&c, &f.base, f.index, kind, &p));
    FILE *to = open_memstream(&text, &size);
    assert_ok(plan_report(p, to));
    fclose(to);
    plan_free(&p);
    fake_data_done(&f);
    return text;
}

/* With as many questions on a picture as VQAv2 has, ranks have an even load even if each gets one
 * row. By the earlier rules, which cursors of earlier streams still get, they do not. */
static void test_balance__real_numbers_of_questions(void **state)
{
    (void)state;
    enum { N = 30000, PICTURES = 5600 };
    static fake_sample samples[N];
    fake_vqa_lengths(harness_seed(), samples, N);
    int64_t n = 0;
    for (int64_t picture = 0; picture < PICTURES && n < N; picture++) {
        const int64_t first = n, questions = questions_of(picture, PICTURES);
        for (int64_t k = 1; k < questions && n + 1 < N; k++) {
            n++;
            samples[n].width = samples[first].width;
            samples[n].height = samples[first].height;
            samples[n].image_of = first + 1;
        }
        n++;
    }
    char *text = report_shared(samples, n, PLAN_PACKED);
    assert_true(worst_step(text) <= 3.0);
    assert_true(mean_step(text) <= 1.5);
    const char *fill = strstr(text, "fill: ");
    assert_non_null(fill);
    print_message("fill %.2f %%\n", strtod(fill + strlen("fill: "), NULL));
    assert_true(strtod(fill + strlen("fill: "), NULL) >= 99.0);
    free(text);
    text = report_shared(samples, n, PLAN_EARLIER);
    assert_true(worst_step(text) > 3.0);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_epoch__every_usable_sample_once),
        cmocka_unit_test(test_stream__is_a_function_of_seed_and_epoch),
        cmocka_unit_test(test_seek__equals_walking),
        cmocka_unit_test(test_prepare__in_pieces_and_for_several_walkers),
        cmocka_unit_test(test_classes__most_rows_have_one),
        cmocka_unit_test(test_epochs__are_planned_on_demand),
        cmocka_unit_test(test_epochs__last_step_is_completed),
        cmocka_unit_test(test_from__begins_at_an_epoch_whose_first_row_is_known),
        cmocka_unit_test(test_samples__row_i_is_sample_i),
        cmocka_unit_test(test_oversize__is_shrunk_or_refused),
        cmocka_unit_test(test_nothing_usable__says_why),
        cmocka_unit_test(test_fill__vqa_lengths_at_8192),
        cmocka_unit_test(test_balance__real_numbers_of_questions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
