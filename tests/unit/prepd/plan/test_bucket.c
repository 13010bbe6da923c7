/* Tests of shape buckets: there are as many as are worth it, each holds the one before it, they fit
 * their rows closely, and the last one holds any row of any epoch. */
#include "tests/harness.h"

#include <string.h>

#include "common/base/rng.h"
#include "tests/unit/prepd/conf_defaults.h"
#include "tests/unit/prepd/plan/fake_data.h"

enum { N = 2000 };

static conf bucket_conf(bool pack)
{
    conf c = conf_defaults();
    c.training_seq_len = 1024;
    c.training_global_batch_size = 8;
    c.training_seed = 7;
    c.data_window = 256;
    c.data_pack = pack;
    c.image_min_pixels = 1024;
    c.image_max_pixels = 16777216;
    return c;
}

static int64_t pick_larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static shape_bucket measures(const planned_row *r)
{
    shape_bucket m = {
        .tokens = r->tokens, .patches = r->patches, .documents = r->n_docs, .rows = 1};
    for (int64_t k = 0; k < r->n_docs; k++) {
        const planned_doc *d = &r->docs[k];
        m.longest = pick_larger(m.longest, d->tokens);
        m.targets += d->targets;
        m.images += d->shared ? 0 : d->n_images;
        m.frames += d->shared ? 0 : d->frames;
        m.frame = pick_larger(m.frame, d->frame);
    }
    return m;
}

static bool holds_bucket(const shape_bucket *b, const shape_bucket *m)
{
    return m->tokens <= b->tokens && m->patches <= b->patches && m->targets <= b->targets &&
           m->documents <= b->documents && m->longest <= b->longest && m->images <= b->images &&
           m->frames <= b->frames && m->frame <= b->frame;
}

/* Plans three epochs, checks what must hold of any buckets and returns how many there are. */
static int make_buckets(const conf *c, const fake_sample *samples, int64_t n, shape_bucket *out)
{
    fake_data f;
    plan *p;
    arena a;
    int n_buckets;
    int64_t rows = 0;
    arena_init(&a, 0);
    fake_data_init(&f, samples, n);
    assert_ok(plan_new(c, &f.base, f.index, PLAN_PACKED, &p));
    const shape_bucket *b = plan_buckets(p, &n_buckets);
    assert_in_range(n_buckets, 1, MAX_BUCKETS);
    for (uint64_t k = 0; k < 3 * plan_epoch_rows(p); k++) {
        planned_row r;
        arena_reset(&a);
        assert_ok(plan_row(p, NULL, k, &a, &r));
        const shape_bucket m = measures(&r);
        assert_true(holds_bucket(&b[n_buckets - 1], &m));
    }
    for (int k = 0; k < n_buckets; k++) {
        rows += b[k].rows;
        out[k] = b[k];
        if (k)
            assert_true(holds_bucket(&b[k], &b[k - 1]) && !holds_bucket(&b[k - 1], &b[k]));
    }
    assert_int_equal(rows, plan_epoch_rows(p));
    plan_free(&p);
    fake_data_done(&f);
    arena_done(&a);
    return n_buckets;
}

static void test_buckets__as_many_as_are_worth_it(void **state)
{
    (void)state;
    static fake_sample samples[N];
    shape_bucket b[MAX_BUCKETS];
    const conf c = bucket_conf(false);
    for (int64_t i = 0; i < N; i++)
        samples[i] = (fake_sample){.text_tokens = 100};
    assert_int_equal(make_buckets(&c, samples, N, b), 1);
    assert_true(b[0].tokens == 100 && b[0].patches == 0 && b[0].documents == 1);
    assert_true(b[0].longest == 100 && b[0].images == 0 && b[0].targets == 1);

    for (int64_t i = 0; i < N; i += 2)
        samples[i].text_tokens = 1000;
    assert_int_equal(make_buckets(&c, samples, N, b), 2);
    /* 100 tokens, rounded up to whole tiles of 64 */
    assert_true(b[0].tokens == 128 && b[0].rows == N / 2);
    assert_true(b[1].tokens == 1000 && b[1].rows == N / 2);
}

/* With lengths of any size, padding is at most 16 %, where a single bucket would double the
 * tokens. */
static void test_buckets__rows_of_all_lengths(void **state)
{
    (void)state;
    static fake_sample samples[N];
    shape_bucket b[MAX_BUCKETS];
    const conf c = bucket_conf(false);
    const rng_key key = rng_key_make(harness_seed(), "lengths");
    int64_t tokens = 0, held = 0;
    for (int64_t i = 0; i < N; i++) {
        samples[i] = (fake_sample){.text_tokens = 1 + (int32_t)rng_below(key, (uint64_t)i, 1024)};
        tokens += samples[i].text_tokens;
    }
    const int n = make_buckets(&c, samples, N, b);
    assert_int_equal(n, MAX_BUCKETS);
    for (int k = 0; k < n; k++)
        held += b[k].rows * b[k].tokens;
    /* 8 buckets of equal steps cannot be below 1.125 */
    assert_true((double)held < 1.16 * (double)tokens);
}

/* Packed rows have far fewer documents and pictures than their budgets alone would allow, and
 * buckets follow that. */
static void test_buckets__packed_pictures_are_tight(void **state)
{
    (void)state;
    static fake_sample samples[N];
    shape_bucket b[MAX_BUCKETS];
    conf c = bucket_conf(true);
    c.training_seq_len = 8192;
    fake_vqa_lengths(harness_seed(), samples, N);
    /* with a short sample, many more documents could share a row */
    samples[0] = (fake_sample){.text_tokens = 20};
    const int n = make_buckets(&c, samples, N, b);
    assert_true(b[n - 1].documents >= 400);
    for (int k = 0; k + 1 < n; k++) {
        assert_true(b[k].documents < 48 && b[k].images < 48 && b[k].frames < 48);
        assert_true(b[k].longest < 512 && b[k].frame < 2048 && b[k].targets < 64 + 48);
    }
    assert_true(b[n - 1].rows * 10 < b[0].rows);
    /* a second plan has the same buckets */
    assert_int_equal(make_buckets(&c, samples, 0 + N, b), n);
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
