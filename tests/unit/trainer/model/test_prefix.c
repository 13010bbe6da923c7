/* test_prefix.c: a row whose documents continue a shared prefix gives the loss and the gradients of
 * the same samples one by one. The test computes in double, where a difference larger than rounding
 * is an error. Trees are drawn from seeds: with pictures, a clip or text alone, with two and more
 * branches, and with ordinary documents between them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "tests/unit/trainer/model/fixture.h"

enum { BRANCHES_MAX = 12, TREES_MAX = 4, SAMPLES_MAX = TREES_MAX * BRANCHES_MAX };

/* One prefix and its branches, and the same as samples of their own. */
typedef struct tree {
    row prefix;               /* one document without labels */
    row sample[BRANCHES_MAX]; /* each the prefix's tokens and pixels, then a branch's tokens */
    int n_branches;           /* 1: an ordinary document */
} tree;

/* Copies the tokens [from, end) of a row to the end of another one. first_row: the first merged
 * visual row of the copied items. */
static void append_tokens(row *to, int64_t *at, const row *source, int64_t from, int64_t end,
                          int64_t first_row)
{
    for (int64_t t = from; t < end; t++, ++*at) {
        to->input_ids[*at] = source->input_ids[t];
        to->labels[*at] = source->labels[t];
        to->loss_weight[*at] = source->loss_weight[t];
        to->visual_row[*at] =
            source->visual_row[t] < 0 ? -1 : source->visual_row[t] + (int32_t)first_row;
        for (int axis = 0; axis < 3; axis++)
            to->position_ids[axis * to->n_tokens + *at] =
                source->position_ids[axis * source->n_tokens + t];
    }
}

/* Makes a sample: the prefix's tokens, followed by the tokens that `whole` has after them. */
static row join_sample(fixture *f, const row *prefix, const row *whole)
{
    row sample = *prefix;
    const int64_t shared = prefix->n_tokens;
    int64_t at = 0;
    sample.n_tokens = whole->n_tokens;
    assert_ok(row_alloc(&sample, &f->rows, ROW_WEIGHTS));
    append_tokens(&sample, &at, prefix, 0, shared, 0);
    append_tokens(&sample, &at, whole, shared, whole->n_tokens, 0);
    sample.labels[shared] = NO_LABEL; /* the last token before a label is the branch's own */
    sample.cu_seqlens[1] = (int32_t)at;
    sample.doc_sample_id[0] = whole->doc_sample_id[0];
    sample.grid_thw = prefix->grid_thw;
    sample.pixels = prefix->pixels;
    sample.pixels_video = prefix->pixels_video;
    assert_ok(row_check(&sample, "sample"));
    return sample;
}

static tree draw_tree(fixture *f, rng_key key, uint64_t number)
{
    static const char *const prefixes[] = {"4 1x4x6 3", "9", "2 1x4x4 2 1x6x4 5", "3 v2x4x4 1 + 4",
                                           "70"};
    const char *text = prefixes[rng_below(key, 100 * number, 5)];
    const uint64_t drawn = rng_below(key, 100 * number + 1, 4);
    tree t = {.n_branches = drawn == 0 ? 1 : (int)(2 + rng_below(key, 100 * number + 2, 10))};
    t.prefix = fixture_row(f, &(document){text, 1000 + number}, 1, true);
    for (int64_t i = 0; i < t.prefix.n_tokens; i++) {
        t.prefix.labels[i] = NO_LABEL;
        t.prefix.loss_weight[i] = 1;
    }
    for (int b = 0; b < t.n_branches; b++) {
        char whole[64];
        snprintf(whole, sizeof whole, "%s %llu", text,
                 (unsigned long long)(2 + rng_below(key, 100 * number + 10 + (uint64_t)b, 30)));
        const row other =
            fixture_row(f, &(document){whole, 10000 * number + (uint64_t)b + 1}, 1, true);
        t.sample[b] = join_sample(f, &t.prefix, &other);
    }
    return t;
}

static void append_pixels(row *to, const row *source, int64_t items, int64_t patches,
                          int64_t video_patches)
{
    memcpy(to->grid_thw + 3 * items, source->grid_thw,
           (size_t)(3 * source->n_items) * sizeof(int32_t));
    memcpy(to->pixels + patches * PATCH_BYTES, source->pixels,
           (size_t)(source->n_patches * PATCH_BYTES));
    if (source->n_video_patches > 0)
        memcpy(to->pixels_video + video_patches * VIDEO_PATCH_BYTES, source->pixels_video,
               (size_t)(source->n_video_patches * VIDEO_PATCH_BYTES));
}

/* Packs trees into one row. */
static row pack_trees(fixture *f, const tree *trees, int n)
{
    row packed = {0};
    for (int i = 0; i < n; i++) {
        const tree *t = &trees[i];
        const bool shared = t->n_branches > 1;
        packed.n_docs += t->n_branches + shared;
        packed.n_tokens += shared ? t->prefix.n_tokens : 0;
        for (int b = 0; b < t->n_branches; b++)
            packed.n_tokens += t->sample[b].n_tokens - (shared ? t->prefix.n_tokens : 0);
        packed.n_items += t->prefix.n_items;
        packed.n_patches += t->prefix.n_patches;
        packed.n_video_patches += t->prefix.n_video_patches;
    }
    assert_ok(row_alloc(&packed, &f->rows, ROW_WEIGHTS | ROW_PREFIXES));
    int64_t at = 0, items = 0, patches = 0, video_patches = 0, doc = 0;
    for (int i = 0; i < n; i++) {
        const tree *t = &trees[i];
        const int64_t first_row = (patches + video_patches) / 4, root = doc;
        const bool shared = t->n_branches > 1;
        append_pixels(&packed, &t->prefix, items, patches, video_patches);
        if (shared) {
            append_tokens(&packed, &at, &t->prefix, 0, t->prefix.n_tokens, first_row);
            packed.doc_part[doc] = -1;
            packed.doc_sample_id[doc] = t->sample[0].doc_sample_id[0];
            packed.cu_seqlens[++doc] = (int32_t)at;
        }
        for (int b = 0; b < t->n_branches; b++) {
            append_tokens(&packed, &at, &t->sample[b], shared ? t->prefix.n_tokens : 0,
                          t->sample[b].n_tokens, first_row);
            packed.doc_prefix[doc] = shared ? (int32_t)root : -1;
            packed.doc_sample_id[doc] = t->sample[b].doc_sample_id[0];
            packed.cu_seqlens[++doc] = (int32_t)at;
        }
        items += t->prefix.n_items;
        patches += t->prefix.n_patches;
        video_patches += t->prefix.n_video_patches;
    }
    assert_ok(row_check(&packed, "trees"));
    return packed;
}

/* The largest |a - b| / |b| over the gradients of all parameters and the loss. */
static double worst_difference(fixture *f, double loss, double want_loss, double **want)
{
    double worst = fabs(loss - want_loss) / fabs(want_loss);
    for (int64_t i = 0; i < f->p->count; i++) {
        double *got = fixture_grad(f, &f->p->list[i]), difference = 0, size = 0;
        for (int64_t j = 0; j < f->p->list[i].count; j++) {
            difference += (got[j] - want[i][j]) * (got[j] - want[i][j]);
            size += want[i][j] * want[i][j];
        }
        worst = fmax(worst, size > 0 ? sqrt(difference / size) : sqrt(difference));
        free(got);
    }
    return worst;
}

/* Compares the packed row with its samples, each in a row of its own. */
static double compare(fixture *f, const row *packed, const row *samples, int n, int weighting,
                      bool fixed_shapes)
{
    model_options o = f->o;
    o.cap = (batch_caps){0};
    batch_caps_for(samples, n, 1, 4, &o.cap);
    fixture_model(f, &o, false);
    stager_weigh(f->g, weighting);
    const double want_loss = fixture_forward_backward(f, samples, n);
    double **want = calloc((size_t)f->p->count, sizeof *want);
    for (int64_t i = 0; i < f->p->count; i++)
        want[i] = fixture_grad(f, &f->p->list[i]);
    o.cap = (batch_caps){0};
    batch_caps_for(packed, 1, fixed_shapes ? 64 : 1, fixed_shapes ? 32 : 4, &o.cap);
    o.cap.docs += fixed_shapes ? 3 : 0;
    fixture_model(f, &o, fixed_shapes);
    stager_weigh(f->g, weighting);
    const double loss = fixture_forward_backward(f, packed, 1);
    const double worst = worst_difference(f, loss, want_loss, want);
    for (int64_t i = 0; i < f->p->count; i++)
        free(want[i]);
    free(want);
    return worst;
}

/* Draws the trees of a seed; the first one always has branches. Returns how many samples they have.
 */
static int draw_trees(fixture *f, uint64_t seed, tree *trees, row *samples)
{
    const rng_key key = rng_key_make(seed, "trees");
    int n = 0;
    for (int i = 0; i < TREES_MAX; i++) {
        for (uint64_t try = 0; try == 0 || (i == 0 && trees[i].n_branches == 1); try++)
            trees[i] = draw_tree(f, key, (uint64_t)i + TREES_MAX * try);
        for (int b = 0; b < trees[i].n_branches; b++)
            samples[n++] = trees[i].sample[b];
    }
    return n;
}

static void check_seeds(const model_options *o, int weighting, uint64_t first, uint64_t end)
{
    static tree trees[TREES_MAX];
    static row samples[SAMPLES_MAX];
    model_dims dims;
    assert_ok(dims_preset("debug", &dims));
    for (uint64_t seed = first; seed < end; seed++) {
        fixture f;
        fixture_open(&f, &dims);
        f.o = *o;
        const int n = draw_trees(&f, seed, trees, samples);
        const row packed = pack_trees(&f, trees, TREES_MAX);
        int64_t apart = 0;
        for (int i = 0; i < n; i++)
            apart += samples[i].n_tokens;
        const double worst = compare(&f, &packed, samples, n, weighting, seed % 2 == 1);
        print_message("seed %llu: %lld tokens instead of %lld, largest difference %.2g\n",
                      (unsigned long long)seed, (long long)packed.n_tokens, (long long)apart,
                      worst);
        assert_true(worst <= 1e-12);
        fixture_close(&f);
    }
}

static void test_prefix__is_each_sample_alone(void **state)
{
    (void)state;
    check_seeds(&(model_options){.training = true}, WEIGHTING_TOKEN, 1, 7);
}

static void test_prefix__under_activation_checkpointing(void **state)
{
    (void)state;
    const model_options o = {.training = true, .recomputed = fixture_full(true)};
    check_seeds(&o, WEIGHTING_TOKEN, 7, 9);
}

static void test_prefix__whatever_weighs_samples(void **state)
{
    (void)state;
    check_seeds(&(model_options){.training = true}, WEIGHTING_SAMPLE, 9, 11);
    check_seeds(&(model_options){.training = true}, WEIGHTING_SQRT, 11, 13);
}

/* The load-balancing loss counts the tokens of a prefix once for each of its branches. */
static void test_prefix__balances_experts_as_samples_do(void **state)
{
    (void)state;
    check_seeds(&(model_options){.training = true, .router_aux_coef = 0.5}, WEIGHTING_TOKEN, 13,
                17);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefix__is_each_sample_alone),
        cmocka_unit_test(test_prefix__under_activation_checkpointing),
        cmocka_unit_test(test_prefix__whatever_weighs_samples),
        cmocka_unit_test(test_prefix__balances_experts_as_samples_do),
    };
    return cmocka_run_group_tests_name("prefix", tests, NULL, NULL);
}
