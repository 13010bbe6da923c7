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
    for (int64_t token = from; token < end; token++, ++*at) {
        to->input_ids[*at] = source->input_ids[token];
        to->labels[*at] = source->labels[token];
        to->loss_weight[*at] = source->loss_weight[token];
        to->visual_row[*at] =
            source->visual_row[token] < 0 ? -1 : source->visual_row[token] + (int32_t)first_row;
        for (int axis = 0; axis < 3; axis++)
            to->position_ids[axis * to->n_tokens + *at] =
                source->position_ids[axis * source->n_tokens + token];
    }
}

/* Makes a sample: the prefix's tokens, followed by the tokens that `whole` has after them. */
static row join_sample(fixture *setup, const row *prefix, const row *whole)
{
    row sample = *prefix;
    const int64_t shared = prefix->n_tokens;
    int64_t at = 0;
    sample.n_tokens = whole->n_tokens;
    assert_ok(row_alloc(&sample, &setup->rows, ROW_WEIGHTS));
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

static tree draw_tree(fixture *setup, rng_key key, uint64_t number)
{
    static const char *const prefixes[] = {"4 1x4x6 3", "9", "2 1x4x4 2 1x6x4 5", "3 v2x4x4 1 + 4",
                                           "70"};
    const char *text = prefixes[rng_below(key, 100 * number, 5)];
    const uint64_t drawn = rng_below(key, 100 * number + 1, 4);
    tree made = {.n_branches = drawn == 0 ? 1 : (int)(2 + rng_below(key, 100 * number + 2, 10))};
    made.prefix = fixture_row(setup, &(document){text, 1000 + number}, 1, true);
    for (int64_t i = 0; i < made.prefix.n_tokens; i++) {
        made.prefix.labels[i] = NO_LABEL;
        made.prefix.loss_weight[i] = 1;
    }
    for (int branch = 0; branch < made.n_branches; branch++) {
        char whole[64];
        snprintf(
            whole, sizeof whole, "%s %llu", text,
            (unsigned long long)(2 + rng_below(key, 100 * number + 10 + (uint64_t)branch, 30)));
        const row other =
            fixture_row(setup, &(document){whole, 10000 * number + (uint64_t)branch + 1}, 1, true);
        made.sample[branch] = join_sample(setup, &made.prefix, &other);
    }
    return made;
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
static row pack_trees(fixture *setup, const tree *trees, int count)
{
    row packed = {0};
    for (int i = 0; i < count; i++) {
        const tree *one = &trees[i];
        const bool shared = one->n_branches > 1;
        packed.n_docs += one->n_branches + shared;
        packed.n_tokens += shared ? one->prefix.n_tokens : 0;
        for (int branch = 0; branch < one->n_branches; branch++)
            packed.n_tokens += one->sample[branch].n_tokens - (shared ? one->prefix.n_tokens : 0);
        packed.n_items += one->prefix.n_items;
        packed.n_patches += one->prefix.n_patches;
        packed.n_video_patches += one->prefix.n_video_patches;
    }
    assert_ok(row_alloc(&packed, &setup->rows, ROW_WEIGHTS | ROW_PREFIXES));
    int64_t at = 0, items = 0, patches = 0, video_patches = 0, doc = 0;
    for (int i = 0; i < count; i++) {
        const tree *one = &trees[i];
        const int64_t first_row = (patches + video_patches) / 4, root = doc;
        const bool shared = one->n_branches > 1;
        append_pixels(&packed, &one->prefix, items, patches, video_patches);
        if (shared) {
            append_tokens(&packed, &at, &one->prefix, 0, one->prefix.n_tokens, first_row);
            packed.doc_part[doc] = -1;
            packed.doc_sample_id[doc] = one->sample[0].doc_sample_id[0];
            packed.cu_seqlens[++doc] = (int32_t)at;
        }
        for (int branch = 0; branch < one->n_branches; branch++) {
            append_tokens(&packed, &at, &one->sample[branch], shared ? one->prefix.n_tokens : 0,
                          one->sample[branch].n_tokens, first_row);
            packed.doc_prefix[doc] = shared ? (int32_t)root : -1;
            packed.doc_sample_id[doc] = one->sample[branch].doc_sample_id[0];
            packed.cu_seqlens[++doc] = (int32_t)at;
        }
        items += one->prefix.n_items;
        patches += one->prefix.n_patches;
        video_patches += one->prefix.n_video_patches;
    }
    assert_ok(row_check(&packed, "trees"));
    return packed;
}

/* The largest |a - b| / |b| over the gradients of all parameters and the loss. */
static double worst_difference(fixture *setup, double loss, double want_loss, double **want)
{
    double worst = fabs(loss - want_loss) / fabs(want_loss);
    for (int64_t i = 0; i < setup->registry->count; i++) {
        double *got = fixture_grad(setup, &setup->registry->list[i]), difference = 0, size = 0;
        for (int64_t j = 0; j < setup->registry->list[i].count; j++) {
            difference += (got[j] - want[i][j]) * (got[j] - want[i][j]);
            size += want[i][j] * want[i][j];
        }
        worst = fmax(worst, size > 0 ? sqrt(difference / size) : sqrt(difference));
        free(got);
    }
    return worst;
}

/* Compares the packed row with its samples, each in a row of its own. */
static double compare(fixture *setup, const row *packed, const row *samples, int count,
                      int weighting, bool fixed_shapes)
{
    model_options options = setup->options;
    options.cap = (batch_caps){0};
    batch_caps_for(samples, count, 1, 4, &options.cap);
    fixture_model(setup, &options, false);
    stager_weigh(setup->staging, weighting);
    const double want_loss = fixture_forward_backward(setup, samples, count);
    double **want = calloc((size_t)setup->registry->count, sizeof *want);
    for (int64_t i = 0; i < setup->registry->count; i++)
        want[i] = fixture_grad(setup, &setup->registry->list[i]);
    options.cap = (batch_caps){0};
    batch_caps_for(packed, 1, fixed_shapes ? 64 : 1, fixed_shapes ? 32 : 4, &options.cap);
    options.cap.docs += fixed_shapes ? 3 : 0;
    fixture_model(setup, &options, fixed_shapes);
    stager_weigh(setup->staging, weighting);
    const double loss = fixture_forward_backward(setup, packed, 1);
    const double worst = worst_difference(setup, loss, want_loss, want);
    for (int64_t i = 0; i < setup->registry->count; i++)
        free(want[i]);
    free(want);
    return worst;
}

/* Draws the trees of a seed; the first one always has branches. Returns how many samples they have.
 */
static int draw_trees(fixture *setup, uint64_t seed, tree *trees, row *samples)
{
    const rng_key key = rng_key_make(seed, "trees");
    int count = 0;
    for (int i = 0; i < TREES_MAX; i++) {
        for (uint64_t try = 0; try == 0 || (i == 0 && trees[i].n_branches == 1); try++)
            trees[i] = draw_tree(setup, key, (uint64_t)i + TREES_MAX * try);
        for (int branch = 0; branch < trees[i].n_branches; branch++)
            samples[count++] = trees[i].sample[branch];
    }
    return count;
}

static void check_seeds(const model_options *options, int weighting, uint64_t first, uint64_t end)
{
    static tree trees[TREES_MAX];
    static row samples[SAMPLES_MAX];
    model_dims dims;
    assert_ok(dims_preset("debug", &dims));
    for (uint64_t seed = first; seed < end; seed++) {
        fixture setup;
        fixture_open(&setup, &dims);
        setup.options = *options;
        const int count = draw_trees(&setup, seed, trees, samples);
        const row packed = pack_trees(&setup, trees, TREES_MAX);
        int64_t apart = 0;
        for (int i = 0; i < count; i++)
            apart += samples[i].n_tokens;
        const double worst = compare(&setup, &packed, samples, count, weighting, seed % 2 == 1);
        print_message("seed %llu: %lld tokens instead of %lld, largest difference %.2g\n",
                      (unsigned long long)seed, (long long)packed.n_tokens, (long long)apart,
                      worst);
        assert_true(worst <= 1e-12);
        fixture_close(&setup);
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
    const model_options options = {.training = true, .recomputed = fixture_full(true)};
    check_seeds(&options, WEIGHTING_TOKEN, 7, 9);
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
