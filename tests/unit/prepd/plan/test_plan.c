/* SPDX-License-Identifier: Apache-2.0 */
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
    conf options = conf_defaults();
    options.training_seq_len = 1024;
    options.training_global_batch_size = 8;
    options.training_seed = 7;
    options.data_window = 256;
    options.image_min_pixels = 1024;
    options.image_max_pixels = 16777216;
    return options;
}

/* A digest of the numbers, epochs, samples and grids of rows [from, to). */
static uint64_t row_range_digest(plan *planned, row_range *range, uint64_t from, uint64_t to)
{
    hasher *hash;
    arena memory;
    arena_init(&memory, 0);
    assert_ok(hasher_new(&hash));
    for (uint64_t k = from; k < to; k++) {
        planned_row placed;
        arena_reset(&memory);
        assert_ok(plan_row(planned, range, k, &memory, &placed));
        hasher_add_u64(hash, placed.number);
        hasher_add_u64(hash, placed.epoch);
        for (int64_t doc = 0; doc < placed.n_docs; doc++) {
            hasher_add_u64(hash, (uint64_t)placed.docs[doc].sample);
            hasher_add_u64(hash, (uint64_t)placed.docs[doc].tokens);
            for (int32_t image = 0; image < placed.docs[doc].n_images; image++)
                hasher_add_u64(hash, (uint64_t)fit_patches(placed.docs[doc].grids[image]));
        }
    }
    uint64_t value = load_u64(hasher_value(hash).bytes);
    hasher_free(&hash);
    arena_done(&memory);
    return value;
}

static uint64_t rows_digest(plan *planned, uint64_t from, uint64_t to)
{
    return row_range_digest(planned, NULL, from, to);
}

static void mixed_samples(fake_sample *fake, int64_t count)
{
    fake_vqa_lengths(harness_seed(), fake, count);
    for (int64_t i = 0; i < count; i++) {
        if (i % 7 == 3)
            fake[i].cause = "bad on purpose";
        if (i % 11 == 5)
            fake[i].width = fake[i].height = 0; /* only text */
        if (i % 13 == 7)
            fake[i].text_tokens = 1025; /* longer than a row */
    }
}

static void test_epoch__every_usable_sample_once(void **state)
{
    (void)state;
    enum { SAMPLES = 1500 };
    fake_sample samples[SAMPLES];
    fake_data data;
    plan *planned;
    arena memory;
    conf options = small_conf();
    arena_init(&memory, 0);
    mixed_samples(samples, SAMPLES);
    fake_data_init(&data, samples, SAMPLES);
    for (int pack = 0; pack < 2; pack++) {
        options.data_pack = pack;
        assert_ok(plan_new(&options, &data.base, data.index, PLAN_PACKED, &planned));
        int64_t usable = SAMPLES - plan_refused(planned);
        uint64_t row = 0;
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            int seen[SAMPLES] = {0};
            int64_t count = 0;
            for (;; row++) {
                planned_row placed;
                arena_reset(&memory);
                assert_ok(plan_row(planned, NULL, row, &memory, &placed));
                if (placed.epoch != epoch)
                    break;
                int64_t tokens = 0, patches = 0;
                for (int64_t doc = 0; doc < placed.n_docs; doc++) {
                    seen[placed.docs[doc].sample]++;
                    count++;
                    tokens += placed.docs[doc].tokens;
                    patches += placed.docs[doc].patches;
                    assert_null(plan_cause(planned, placed.docs[doc].sample));
                }
                assert_int_equal(tokens, placed.tokens);
                assert_int_equal(patches, placed.patches);
                assert_true(placed.tokens <= plan_token_budget(planned) &&
                            placed.patches <= plan_patch_budget(planned));
                assert_true(pack || placed.n_docs == 1);
            }
            assert_int_equal(count, usable);
            for (int i = 0; i < SAMPLES; i++) {
                assert_true(seen[i] <= 1);
                assert_int_equal(seen[i] == 0, plan_cause(planned, i) != NULL);
            }
            if (epoch == 0)
                assert_int_equal(row, plan_epoch_rows(planned));
        }
        assert_int_equal(plan_rows(planned, NULL), UINT64_MAX);
        assert_string_equal(plan_cause(planned, 3), "bad on purpose");
        assert_non_null(strstr(plan_cause(planned, 7), "1025 tokens"));
        assert_non_null(strstr(plan_cause(planned, 7), "training.seq_len"));
        plan_free(&planned);
    }
    fake_data_done(&data);
    arena_done(&memory);
}

static void test_stream__is_a_function_of_seed_generation_and_epoch(void **state)
{
    (void)state;
    enum { SAMPLES = 900 };
    fake_sample samples[SAMPLES];
    fake_data data;
    plan *planned, *list, *other, *plain, *later;
    conf options = small_conf(), settings = small_conf(), own = small_conf(), raised = small_conf();
    raised.data_generation = 1;
    fake_vqa_lengths(harness_seed(), samples, SAMPLES);
    fake_data_init(&data, samples, SAMPLES);
    settings.training_seed = 8;
    own.data_shuffle = false;
    assert_ok(plan_new(&options, &data.base, data.index, PLAN_PACKED, &planned));
    assert_ok(plan_new(&options, &data.base, data.index, PLAN_PACKED, &list));
    assert_ok(plan_new(&settings, &data.base, data.index, PLAN_PACKED, &other));
    assert_ok(plan_new(&own, &data.base, data.index, PLAN_PACKED, &plain));
    assert_ok(plan_new(&raised, &data.base, data.index, PLAN_PACKED, &later));
    uint64_t rows = plan_epoch_rows(planned);
    assert_int_equal(rows_digest(planned, 0, rows), rows_digest(list, 0, rows));
    assert_int_not_equal(rows_digest(planned, 0, 20), rows_digest(other, 0, 20));
    assert_int_not_equal(rows_digest(planned, 0, 20), rows_digest(plain, 0, 20));
    assert_int_not_equal(rows_digest(planned, 0, 20), rows_digest(later, 0, 20));
    /* The second epoch has another order. */
    planned_row placed, row;
    arena memory;
    arena_init(&memory, 0);
    assert_ok(plan_row(planned, NULL, 0, &memory, &placed));
    assert_ok(plan_row(planned, NULL, rows, &memory, &row));
    assert_int_equal(row.epoch, 1);
    assert_int_not_equal(placed.docs[0].sample, row.docs[0].sample);
    arena_done(&memory);
    plan_free(&planned);
    plan_free(&list);
    plan_free(&other);
    plan_free(&plain);
    plan_free(&later);
    fake_data_done(&data);
}

static void test_seek__equals_walking(void **state)
{
    (void)state;
    enum { SAMPLES = 700 };
    fake_sample samples[SAMPLES];
    fake_data data;
    plan *walk, *seek;
    conf options = small_conf();
    fake_vqa_lengths(harness_seed(), samples, SAMPLES);
    fake_data_init(&data, samples, SAMPLES);
    assert_ok(plan_new(&options, &data.base, data.index, PLAN_PACKED, &walk));
    uint64_t rows = 4 * plan_epoch_rows(walk);
    (void)rows_digest(walk, 0, rows);
    rng_key key = rng_key_make(harness_seed(), "seek");
    for (uint64_t k = 0; k < 12; k++) {
        uint64_t row = rng_below(key, k, rows);
        assert_ok(plan_new(&options, &data.base, data.index, PLAN_PACKED, &seek));
        assert_int_equal(rows_digest(seek, row, row + 3), rows_digest(walk, row, row + 3));
        assert_int_equal(rows_digest(seek, row / 2, row / 2 + 3),
                         rows_digest(walk, row / 2, row / 2 + 3));
        plan_free(&seek);
    }
    plan_free(&walk);
    fake_data_done(&data);
}

/* A plan that is made in pieces and walked by several at once has the stream of one that is made at
 * once and walked alone. */
static void test_prepare__in_pieces_and_for_several_walkers(void **state)
{
    (void)state;
    enum { SAMPLES = 9000, WALKERS = 3 }; /* more samples than are planned in one piece */
    static fake_sample samples[SAMPLES];
    fake_data data;
    plan *whole, *planned;
    bool ready;
    conf options = small_conf();
    fake_vqa_lengths(harness_seed(), samples, SAMPLES);
    fake_data_init(&data, samples, SAMPLES);
    for (int shared = 0; shared < 2; shared++) {
        for (int endless = 0; endless < 2; endless++) {
            int64_t pieces = 0;
            options.data_group = shared ? GROUP_SHARED_IMAGE : GROUP_NONE;
            options.training_epochs = endless ? 0 : 2.5;
            assert_ok(plan_new(&options, &data.base, data.index, PLAN_PACKED, &whole));
            assert_ok(plan_begin(&options, &data.base, data.index, PLAN_PACKED, &planned));
            assert_ok(plan_prepare(planned, NULL, 0, &(int64_t){0}, &ready)); /* nothing is done */
            assert_false(ready);
            /* One piece at a time. */
            for (; !ready; pieces++)
                assert_ok(plan_prepare(planned, NULL, 0, &(int64_t){1}, &ready));
            assert_in_range(pieces, 4, 10000);
            /* it is planned only as far as asked for */
            assert_int_equal(plan_rows(planned, NULL), UINT64_MAX);
            assert_int_equal(plan_epoch_rows(planned), plan_epoch_rows(whole));
            const uint64_t far = 2 * plan_epoch_rows(planned);
            assert_ok(plan_prepare(planned, NULL, far + 20, &(int64_t){0}, &ready));
            assert_false(ready);
            for (; !ready; pieces++)
                assert_ok(plan_prepare(planned, NULL, PLAN_ALL, &(int64_t){1}, &ready));
            assert_int_equal(plan_rows(planned, NULL), plan_rows(whole, NULL));
            assert_int_equal(plan_rows(planned, NULL) == UINT64_MAX, endless);
            plan_walkers(planned, WALKERS);
            for (uint64_t k = 0; k < 60; k++) {
                assert_int_equal(rows_digest(planned, k, k + 1), rows_digest(whole, k, k + 1));
                assert_int_equal(rows_digest(planned, far + k / 4, far + k / 4 + 1),
                                 rows_digest(whole, far + k / 4, far + k / 4 + 1));
                if (k == 40)
                    plan_walkers(planned, 1);
            }
            plan_free(&planned);
            assert_ok(plan_begin(&options, &data.base, data.index, PLAN_PACKED, &planned));
            assert_ok(plan_prepare(planned, NULL, 0, &(int64_t){1}, &ready));
            plan_free(&planned); /* freed while it is half planned */
            plan_free(&whole);
        }
    }
    fake_data_done(&data);
}

/* However many epochs there are, row 0 waits only for the first one. Later epochs are planned on
 * demand and are the same. */
static void test_epochs__are_planned_on_demand(void **state)
{
    (void)state;
    enum { SAMPLES = 2000 };
    static fake_sample samples[SAMPLES];
    const double epochs[] = {1e6, 3, 2.5, 0.5};
    fake_data data;
    plan *endless, *planned, *whole;
    planned_row placed;
    arena memory;
    bool ready;
    conf options = small_conf();
    fake_vqa_lengths(harness_seed(), samples, SAMPLES);
    fake_data_init(&data, samples, SAMPLES);
    arena_init(&memory, 0);
    assert_ok(plan_new(&options, &data.base, data.index, PLAN_PACKED, &endless));
    assert_true(plan_endless(endless));
    const uint64_t epoch = plan_epoch_rows(endless);
    for (int k = 0; k < 4; k++) {
        options.training_epochs = epochs[k];
        assert_ok(plan_begin(&options, &data.base, data.index, PLAN_PACKED, &planned));
        assert_ok(plan_prepare(planned, NULL, 0, &(int64_t){INT64_MAX}, &ready));
        assert_true(ready && !plan_endless(planned));
        assert_int_equal(plan_epoch_rows(planned), epoch);
        assert_int_equal(plan_rows(planned, NULL) == UINT64_MAX, epochs[k] > 1);
        if (epochs[k] == 1e6) {
            assert_int_equal(rows_digest(planned, 0, 3 * epoch),
                             rows_digest(endless, 0, 3 * epoch));
            assert_int_equal(plan_rows(planned, NULL), UINT64_MAX);
            plan_free(&planned);
            continue;
        }
        assert_ok(plan_new(&options, &data.base, data.index, PLAN_PACKED, &whole));
        const uint64_t rows = plan_rows(whole, NULL);
        for (uint64_t row = 0; row < rows; row++)
            assert_int_equal(rows_digest(planned, row, row + 1), rows_digest(whole, row, row + 1));
        assert_int_equal(plan_row(planned, NULL, rows, &memory, &placed), ST_END);
        assert_int_equal(plan_rows(planned, NULL), rows);
        plan_free(&planned);
        plan_free(&whole);
    }
    plan_free(&endless);
    arena_done(&memory);
    fake_data_done(&data);
}

/* A consumer that knows at which row its epoch begins gets the same rows and the same end without
 * waiting for the epochs before it. */
static void test_from__begins_at_an_epoch_whose_first_row_is_known(void **state)
{
    (void)state;
    enum { SAMPLES = 2000 };
    static fake_sample samples[SAMPLES];
    const double epochs[] = {0, 4, 3.5};
    fake_data data;
    plan *whole, *planned;
    row_range *range, *same, *other;
    uint64_t first, begin;
    bool ready;
    conf options = small_conf();
    fake_vqa_lengths(harness_seed(), samples, SAMPLES);
    fake_data_init(&data, samples, SAMPLES);
    for (int k = 0; k < 3; k++) {
        options.training_epochs = epochs[k];
        assert_ok(plan_new(&options, &data.base, data.index, PLAN_PACKED, &whole));
        const uint64_t all = epochs[k] > 0 ? plan_rows(whole, NULL) : 4 * plan_epoch_rows(whole);
        (void)rows_digest(whole, 0, all);
        for (uint64_t row = plan_epoch_rows(whole); row < all; row += 97) {
            const uint64_t epoch = plan_epoch_of(whole, NULL, row, &begin);
            assert_in_range(begin, plan_epoch_rows(whole), row);
            assert_ok(plan_begin(&options, &data.base, data.index, PLAN_PACKED, &planned));
            assert_ok(plan_from(planned, epoch, begin, &range));
            assert_int_equal(plan_first_row(range), begin);
            assert_ok(plan_prepare(planned, range, row, &(int64_t){INT64_MAX}, &ready));
            assert_ok(plan_prepare(planned, NULL, plan_epoch_rows(planned), &(int64_t){0}, &ready));
            assert_true(!ready); /* of the epochs before, only the first is planned */
            assert_int_equal(row_range_digest(planned, range, row, row + 3 < all ? row + 3 : all),
                             rows_digest(whole, row, row + 3 < all ? row + 3 : all));
            assert_int_equal(plan_epoch_of(planned, range, row, &first), epoch);
            assert_int_equal(first, begin);
            assert_ok(plan_prepare(planned, range, PLAN_ALL, &(int64_t){INT64_MAX}, &ready));
            assert_int_equal(plan_rows(planned, range), plan_rows(whole, NULL));
            plan_leave(planned, &range);
            plan_free(&planned);
        }
        plan_free(&whole);
    }
    /* A far epoch costs no more. If a row is wrongly said to begin an epoch, only the consumer that
     * said so gets other rows. An impossible row is refused. */
    options.training_epochs = 1e6;
    assert_ok(plan_begin(&options, &data.base, data.index, PLAN_PACKED, &planned));
    assert_ok(plan_from(planned, 999999, 1u << 30, &range));
    assert_ok(plan_from(planned, 999999, 1u << 30, &same));
    assert_ok(plan_from(planned, 3, 12345, &other));
    assert_ptr_equal(range, same);
    assert_ok(plan_prepare(planned, range, PLAN_ALL, &(int64_t){INT64_MAX}, &ready));
    assert_in_range(plan_rows(planned, range), 1u << 30, (1u << 30) + SAMPLES);
    assert_int_equal(plan_rows(planned, NULL), UINT64_MAX);
    assert_int_not_equal(row_range_digest(planned, other, 12345, 12350),
                         rows_digest(planned, 0, 5));
    plan_leave(planned, &same);
    (void)row_range_digest(planned, range, 1u << 30,
                           (1u << 30) + 5); /* another consumer still holds it */
    plan_leave(planned, &range);
    assert_null(range);
    assert_int_equal(plan_from(planned, 1000000, 1u << 30, &range), ST_PROTOCOL);
    assert_int_equal(plan_from(planned, 5, 4, &range),
                     ST_PROTOCOL); /* an epoch has at least one row */
    assert_int_equal(plan_from(planned, 0, 1, &range), ST_PROTOCOL);
    assert_int_equal(plan_from(planned, 1, UINT64_MAX, &range), ST_PROTOCOL);
    assert_ok(plan_from(planned, 0, 0, &range));
    assert_null(range);  /* from its beginning, the stream needs no range */
    plan_free(&planned); /* while `other` is still held */
    fake_data_done(&data);
}

static int aspect(fit_grid grid)
{
    return grid.columns * 4 > grid.rows * 5 ? 0 : grid.rows * 4 > grid.columns * 5 ? 2 : 1;
}

/* With data.resolution_class, most rows have pictures of one class, no sample is lost or repeated,
 * and there are not more rows. */
static void test_classes__most_rows_have_one(void **state)
{
    (void)state;
    enum { SAMPLES = 12000 };
    static fake_sample samples[SAMPLES];
    static int64_t seen[SAMPLES];
    fake_data data;
    plan *planned;
    arena memory;
    conf options = small_conf();
    int64_t rows[2] = {0}, alike[2] = {0};
    arena_init(&memory, 0);
    options.training_seq_len = 8192;
    options.data_window = 4096;
    fake_vqa_lengths(harness_seed(), samples, SAMPLES);
    fake_data_init(&data, samples, SAMPLES);
    for (int classes = 0; classes < 2; classes++) {
        options.data_resolution_class = classes;
        memset(seen, 0, sizeof seen);
        assert_ok(plan_new(&options, &data.base, data.index, PLAN_PACKED, &planned));
        rows[classes] = (int64_t)plan_epoch_rows(planned);
        for (uint64_t k = 0; k < plan_epoch_rows(planned); k++) {
            planned_row placed;
            bool same = true;
            arena_reset(&memory);
            assert_ok(plan_row(planned, NULL, k, &memory, &placed));
            assert_true(placed.tokens <= 8192 && placed.patches <= 4 * 8192 && placed.n_docs > 0);
            for (int64_t doc = 0; doc < placed.n_docs; doc++) {
                seen[placed.docs[doc].sample]++;
                same &= aspect(placed.docs[doc].grids[0]) == aspect(placed.docs[0].grids[0]);
            }
            alike[classes] += same;
        }
        for (int64_t i = 0; i < SAMPLES; i++)
            assert_int_equal(seen[i], 1);
        plan_free(&planned);
    }
    assert_true(alike[0] * 50 < rows[0] && alike[1] * 2 > rows[1]);
    assert_true(rows[1] <= rows[0]);
    fake_data_done(&data);
    arena_done(&memory);
}

static void test_epochs__last_step_is_completed(void **state)
{
    (void)state;
    enum { SAMPLES = 500 };
    fake_sample samples[SAMPLES];
    fake_data data;
    plan *planned;
    arena memory;
    conf options = small_conf();
    arena_init(&memory, 0);
    fake_vqa_lengths(harness_seed(), samples, SAMPLES);
    fake_data_init(&data, samples, SAMPLES);
    const double epochs[] = {1.0, 2.0, 0.25, 1.5};
    for (int k = 0; k < 4; k++) {
        options.training_epochs = epochs[k];
        options.training_global_batch_size = 7;
        assert_ok(plan_new(&options, &data.base, data.index, PLAN_PACKED, &planned));
        uint64_t rows = plan_rows(planned, NULL), full = 0, docs = 0;
        planned_row placed;
        assert_int_equal(rows % 7, 0);
        for (uint64_t row = 0; row < rows; row++) {
            arena_reset(&memory);
            assert_ok(plan_row(planned, NULL, row, &memory, &placed));
            assert_true(placed.n_docs > 0 || row >= rows - 6); /* empty rows come only at the end */
            full += placed.n_docs > 0;
            docs += (uint64_t)placed.n_docs;
        }
        assert_true(rows - full < 7);
        assert_int_equal(plan_row(planned, NULL, rows, &memory, &placed), ST_END);
        if (epochs[k] == 1.0 || epochs[k] == 2.0)
            assert_int_equal(docs, (uint64_t)(SAMPLES * epochs[k]));
        if (epochs[k] == 0.25)
            assert_int_equal(full, (plan_epoch_rows(planned) + 3) / 4);
        plan_free(&planned);
    }
    fake_data_done(&data);
    arena_done(&memory);
}

static void test_samples__row_i_is_sample_i(void **state)
{
    (void)state;
    enum { SAMPLES = 40 };
    fake_sample samples[SAMPLES];
    fake_data data;
    plan *planned;
    arena memory;
    planned_row placed;
    conf options = small_conf();
    arena_init(&memory, 0);
    mixed_samples(samples, SAMPLES);
    fake_data_init(&data, samples, SAMPLES);
    assert_ok(plan_new(&options, &data.base, data.index, PLAN_SAMPLES, &planned));
    assert_int_equal(plan_rows(planned, NULL), SAMPLES);
    for (uint64_t i = 0; i < SAMPLES; i++) {
        assert_ok(plan_row(planned, NULL, i, &memory, &placed));
        assert_int_equal(placed.n_docs, plan_cause(planned, (int64_t)i) ? 0 : 1);
        if (placed.n_docs)
            assert_int_equal(placed.docs[0].sample, i);
    }
    assert_int_equal(plan_row(planned, NULL, SAMPLES, &memory, &placed), ST_END);
    plan_free(&planned);
    fake_data_done(&data);
    arena_done(&memory);
}

static void test_oversize__is_shrunk_or_refused(void **state)
{
    (void)state;
    const fake_sample samples[] = {{100, 4000, 3000, NULL},
                                   {1000, 640, 480, NULL},
                                   {1024, 640, 480, NULL},
                                   {1024, 0, 0, NULL},
                                   {30, 100, 100, NULL}};
    fake_data data;
    plan *planned;
    arena memory;
    planned_row placed;
    conf options = small_conf();
    arena_init(&memory, 0);
    fake_data_init(&data, samples, 5);
    assert_ok(plan_new(&options, &data.base, data.index, PLAN_SAMPLES, &planned));
    for (uint64_t i = 0; i < 2; i++) { /* the picture shrinks to the room that its text leaves */
        assert_ok(plan_row(planned, NULL, i, &memory, &placed));
        assert_int_equal(placed.n_docs, 1);
        assert_true(placed.tokens <= 1024);
        assert_int_equal(placed.tokens,
                         samples[i].text_tokens + fit_tokens(placed.docs[0].grids[0]));
    }
    assert_true(placed.tokens > 1000);
    assert_non_null(plan_cause(planned, 2)); /* the text leaves no token for the picture */
    assert_null(plan_cause(planned, 3));
    assert_null(plan_cause(planned, 4));
    plan_free(&planned);
    options.data_patch_budget = 64;
    assert_ok(plan_new(&options, &data.base, data.index, PLAN_SAMPLES, &planned));
    assert_ok(plan_row(planned, NULL, 0, &memory, &placed));
    assert_true(placed.patches <= 64 && placed.patches >= 32);
    plan_free(&planned);
    options.data_patch_budget = 0;
    options.data_oversize = OVERSIZE_REFUSE;
    assert_ok(plan_new(&options, &data.base, data.index, PLAN_SAMPLES, &planned));
    assert_non_null(strstr(plan_cause(planned, 0), "data.oversize: refuse"));
    assert_null(plan_cause(planned, 4));
    plan_free(&planned);
    fake_data_done(&data);
    arena_done(&memory);
}

static void test_nothing_usable__says_why(void **state)
{
    (void)state;
    const fake_sample samples[] = {{10, 64, 64, "empty answer"}, {10, 64, 64, "other"}};
    fake_data data;
    plan *planned = NULL;
    conf options = small_conf();
    fake_data_init(&data, samples, 2);
    assert_fails(ST_BAD_INPUT, plan_new(&options, &data.base, data.index, PLAN_PACKED, &planned),
                 "empty answer");
    assert_null(planned);
    fake_data_done(&data);
    fake_data_init(&data, samples, 0);
    assert_fails(ST_BAD_INPUT, plan_new(&options, &data.base, data.index, PLAN_PACKED, &planned),
                 "the data set holds no sample");
    assert_null(strstr(status_text(), "what is wrong"));
    fake_data_done(&data);
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
    enum { SAMPLES = 20000 };
    static fake_sample samples[SAMPLES];
    fake_data data;
    plan *planned;
    arena memory;
    conf options = small_conf();
    arena_init(&memory, 0);
    options.training_seq_len = 8192;
    options.data_window = 4096;
    options.training_global_batch_size = 32;
    fake_vqa_lengths(harness_seed(), samples, SAMPLES);
    fake_data_init(&data, samples, SAMPLES);
    int64_t start = clock_ns();
    assert_ok(plan_new(&options, &data.base, data.index, PLAN_PACKED, &planned));
    print_message("planned %d samples in %.0f ms\n", SAMPLES, (double)(clock_ns() - start) / 1e6);
    int n_buckets;
    const shape_bucket *bound = plan_buckets(planned, &n_buckets);
    int64_t tokens = 0, rows = 0, in_buckets = 0;
    assert_in_range(n_buckets, 1, MAX_BUCKETS);
    for (uint64_t k = 0; k < plan_epoch_rows(planned); k++, rows++) {
        planned_row placed;
        arena_reset(&memory);
        assert_ok(plan_row(planned, NULL, k, &memory, &placed));
        tokens += placed.tokens;
        const shape_bucket *last = &bound[n_buckets - 1];
        assert_true(placed.tokens <= last->tokens && placed.patches <= last->patches &&
                    placed.n_docs <= last->documents && placed.n_docs <= last->images);
    }
    for (int k = 0; k < n_buckets; k++) {
        in_buckets += bound[k].rows;
        if (k)
            assert_true(bound[k].tokens >= bound[k - 1].tokens &&
                        bound[k].patches >= bound[k - 1].patches);
    }
    assert_int_equal(in_buckets, rows);
    double fill = 100.0 * (double)tokens / (double)(rows * 8192);
    print_message("fill %.2f %%\n", fill);
    assert_true(fill >= 99.5);
    char *text;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    assert_ok(plan_report(planned, to));
    fclose(to);
    print_message("%s", text);
    assert_true(worst_step(text) <= 3.0);
    const char *greedy = strstr(text, "greedy packing over a buffer of 204 samples: ");
    assert_non_null(greedy);
    /* otherwise our packing would be no gain */
    assert_true(strtoll(strchr(greedy, ':') + 1, NULL, 10) > rows);
    free(text);
    options.training_global_batch_size = 8; /* each rank gets one row, so there is no choice */
    to = open_memstream(&text, &size);
    assert_ok(plan_report(planned, to));
    fclose(to);
    assert_true(worst_step(text) <= 3.0);
    free(text);
    plan_free(&planned);
    fake_data_done(&data);
    arena_done(&memory);
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
static char *report_shared(const fake_sample *samples, int64_t count)
{
    fake_data data;
    plan *planned;
    conf options = small_conf();
    char *text;
    size_t size;
    options.training_seq_len = 8192;
    options.data_window = 4096;
    options.training_global_batch_size = 8;
    options.data_group = GROUP_SHARED_IMAGE;
    fake_data_init(&data, samples, count);
    assert_ok(plan_new(&options, &data.base, data.index, PLAN_PACKED, &planned));
    FILE *to = open_memstream(&text, &size);
    assert_ok(plan_report(planned, to));
    fclose(to);
    plan_free(&planned);
    fake_data_done(&data);
    return text;
}

/* With as many questions on a picture as VQAv2 has, ranks have an even load even if each gets one
 * row. */
static void test_balance__real_numbers_of_questions(void **state)
{
    (void)state;
    enum { SAMPLES = 30000, PICTURES = 5600 };
    static fake_sample samples[SAMPLES];
    fake_vqa_lengths(harness_seed(), samples, SAMPLES);
    int64_t count = 0;
    for (int64_t picture = 0; picture < PICTURES && count < SAMPLES; picture++) {
        const int64_t first = count, questions = questions_of(picture, PICTURES);
        for (int64_t k = 1; k < questions && count + 1 < SAMPLES; k++) {
            count++;
            samples[count].width = samples[first].width;
            samples[count].height = samples[first].height;
            samples[count].image_of = first + 1;
        }
        count++;
    }
    char *text = report_shared(samples, count);
    assert_true(worst_step(text) <= 3.0);
    assert_true(mean_step(text) <= 1.5);
    const char *fill = strstr(text, "fill: ");
    assert_non_null(fill);
    print_message("fill %.2f %%\n", strtod(fill + strlen("fill: "), NULL));
    assert_true(strtod(fill + strlen("fill: "), NULL) >= 99.0);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_epoch__every_usable_sample_once),
        cmocka_unit_test(test_stream__is_a_function_of_seed_generation_and_epoch),
        cmocka_unit_test(test_seek__equals_walking),
        cmocka_unit_test(test_prepare__in_pieces_and_for_several_walkers),
        cmocka_unit_test(test_epochs__are_planned_on_demand),
        cmocka_unit_test(test_classes__most_rows_have_one),
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
