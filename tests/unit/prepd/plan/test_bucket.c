/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of shape buckets: there are as many as are worth it, each holds the one before it, they fit
 * their rows closely, and the last one holds any row of any epoch. */
#include "tests/harness.h"

#include <string.h>

#include "common/base/rng.h"
#include "tests/unit/prepd/conf_defaults.h"
#include "tests/unit/prepd/plan/fake_data.h"

enum { SAMPLES = 2000 };

static conf bucket_conf(bool pack)
{
    conf options = conf_defaults();
    options.training_seq_len = 1024;
    options.training_global_batch_size = 8;
    options.training_seed = 7;
    options.data_window = 256;
    options.data_pack = pack;
    options.image_min_pixels = 1024;
    options.image_max_pixels = 16777216;
    return options;
}

static int64_t pick_larger(int64_t first, int64_t second)
{
    return first > second ? first : second;
}

static shape_bucket measures(const planned_row *placed)
{
    shape_bucket bound = {.tokens = placed->tokens,
                          .patches = placed->patches,
                          .documents = placed->n_docs,
                          .rows = 1};
    for (int64_t k = 0; k < placed->n_docs; k++) {
        const planned_doc *doc = &placed->docs[k];
        bound.longest = pick_larger(bound.longest, doc->tokens);
        bound.targets += doc->targets;
        bound.images += doc->shared ? 0 : doc->n_images;
        bound.frames += doc->shared ? 0 : doc->frames;
        bound.frame = pick_larger(bound.frame, doc->frame);
    }
    return bound;
}

static bool holds_bucket(const shape_bucket *bound, const shape_bucket *bucket)
{
    return bucket->tokens <= bound->tokens && bucket->patches <= bound->patches &&
           bucket->targets <= bound->targets && bucket->documents <= bound->documents &&
           bucket->longest <= bound->longest && bucket->images <= bound->images &&
           bucket->frames <= bound->frames && bucket->frame <= bound->frame;
}

/* Plans three epochs, checks what must hold of any buckets and returns how many there are. */
static int make_buckets(const conf *options, const fake_sample *samples, int64_t count,
                        shape_bucket *out)
{
    fake_data data;
    plan *planned;
    arena memory;
    int n_buckets;
    int64_t rows = 0;
    arena_init(&memory, 0);
    fake_data_init(&data, samples, count);
    assert_ok(plan_new(options, &data.base, data.index, PLAN_PACKED, &planned));
    const shape_bucket *bound = plan_buckets(planned, &n_buckets);
    assert_in_range(n_buckets, 1, MAX_BUCKETS);
    for (uint64_t k = 0; k < 3 * plan_epoch_rows(planned); k++) {
        planned_row placed;
        arena_reset(&memory);
        assert_ok(plan_row(planned, NULL, k, &memory, &placed));
        const shape_bucket bucket = measures(&placed);
        assert_true(holds_bucket(&bound[n_buckets - 1], &bucket));
    }
    for (int k = 0; k < n_buckets; k++) {
        rows += bound[k].rows;
        out[k] = bound[k];
        if (k)
            assert_true(holds_bucket(&bound[k], &bound[k - 1]) &&
                        !holds_bucket(&bound[k - 1], &bound[k]));
    }
    assert_int_equal(rows, plan_epoch_rows(planned));
    plan_free(&planned);
    fake_data_done(&data);
    arena_done(&memory);
    return n_buckets;
}

static void test_buckets__as_many_as_are_worth_it(void **state)
{
    (void)state;
    static fake_sample samples[SAMPLES];
    shape_bucket buckets[MAX_BUCKETS];
    const conf options = bucket_conf(false);
    for (int64_t i = 0; i < SAMPLES; i++)
        samples[i] = (fake_sample){.text_tokens = 100};
    assert_int_equal(make_buckets(&options, samples, SAMPLES, buckets), 1);
    assert_true(buckets[0].tokens == 100 && buckets[0].patches == 0 && buckets[0].documents == 1);
    assert_true(buckets[0].longest == 100 && buckets[0].images == 0 && buckets[0].targets == 1);

    for (int64_t i = 0; i < SAMPLES; i += 2)
        samples[i].text_tokens = 1000;
    assert_int_equal(make_buckets(&options, samples, SAMPLES, buckets), 2);
    /* 100 tokens, rounded up to whole tiles of 64 */
    assert_true(buckets[0].tokens == 128 && buckets[0].rows == SAMPLES / 2);
    assert_true(buckets[1].tokens == 1000 && buckets[1].rows == SAMPLES / 2);
}

/* With lengths of any size, padding is at most 16 %, where a single bucket would double the
 * tokens. */
static void test_buckets__rows_of_all_lengths(void **state)
{
    (void)state;
    static fake_sample samples[SAMPLES];
    shape_bucket buckets[MAX_BUCKETS];
    const conf options = bucket_conf(false);
    const rng_key key = rng_key_make(harness_seed(), "lengths");
    int64_t tokens = 0, held = 0;
    for (int64_t i = 0; i < SAMPLES; i++) {
        samples[i] = (fake_sample){.text_tokens = 1 + (int32_t)rng_below(key, (uint64_t)i, 1024)};
        tokens += samples[i].text_tokens;
    }
    const int count = make_buckets(&options, samples, SAMPLES, buckets);
    assert_int_equal(count, MAX_BUCKETS);
    for (int k = 0; k < count; k++)
        held += buckets[k].rows * buckets[k].tokens;
    /* 8 buckets of equal steps cannot be below 1.125 */
    assert_true((double)held < 1.16 * (double)tokens);
}

/* Packed rows have far fewer documents and pictures than their budgets alone would allow, and
 * buckets follow that. */
static void test_buckets__packed_pictures_are_tight(void **state)
{
    (void)state;
    static fake_sample samples[SAMPLES];
    shape_bucket buckets[MAX_BUCKETS];
    conf options = bucket_conf(true);
    options.training_seq_len = 8192;
    fake_vqa_lengths(harness_seed(), samples, SAMPLES);
    /* with a short sample, many more documents could share a row */
    samples[0] = (fake_sample){.text_tokens = 20};
    const int count = make_buckets(&options, samples, SAMPLES, buckets);
    assert_true(buckets[count - 1].documents >= 400);
    for (int k = 0; k + 1 < count; k++) {
        assert_true(buckets[k].documents < 48 && buckets[k].images < 48 && buckets[k].frames < 48);
        assert_true(buckets[k].longest < 512 && buckets[k].frame < 2048 &&
                    buckets[k].targets < 64 + 48);
    }
    assert_true(buckets[count - 1].rows * 10 < buckets[0].rows);
    /* a second plan has the same buckets */
    assert_int_equal(make_buckets(&options, samples, 0 + SAMPLES, buckets), count);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_buckets__as_many_as_are_worth_it),
        cmocka_unit_test(test_buckets__rows_of_all_lengths),
        cmocka_unit_test(test_buckets__packed_pictures_are_tight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
