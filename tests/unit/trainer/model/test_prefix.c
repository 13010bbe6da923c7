/* SPDX-License-Identifier: Apache-2.0 */
/* test_prefix.c: a row whose documents continue a shared prefix gives the loss and the gradients of
 * the same samples one by one: to 1e-12 of each tensor's norm in double and to 1e-5 in float, for
 * which it is compiled twice. Trees are drawn from seeds: with pictures, a clip or text alone, with
 * 2 to 40 branches, and with ordinary documents between them.
 *
 * In float a token may get another expert because its logits round differently. Such a tree is
 * counted and another one is drawn; at most one in a hundred may be. */
#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "tests/unit/trainer/model/fixture.h"
#include "trainer/device/real.h"
#include "trainer/model/params/lora_params.h"

enum { BRANCHES_MAX = 40, TREES_MAX = 3, SAMPLES_MAX = TREES_MAX * BRANCHES_MAX };
enum { IN_DOUBLE = sizeof(real) == sizeof(double) };
static const double most = IN_DOUBLE ? 1e-12 : 1e-5;

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

/* The first tree of a row has at least two branches. */
static tree draw_tree(fixture *setup, rng_key key, uint64_t number)
{
    static const char *const prefixes[] = {"4 1x4x6 3", "9", "2 1x4x4 2 1x6x4 5", "3 v2x4x4 1 + 4",
                                           "70"};
    const char *text = prefixes[rng_below(key, 100 * number, 5)];
    const bool alone = number > 0 && rng_below(key, 100 * number + 1, 4) == 0;
    const uint64_t kinds = number > 0 ? 10 : BRANCHES_MAX - 1;
    tree made = {.n_branches = alone ? 1 : (int)(2 + rng_below(key, 100 * number + 2, kinds))};
    made.prefix = fixture_row(setup, &(document){text, 1000 + number}, 1, true);
    for (int64_t i = 0; i < made.prefix.n_tokens; i++) {
        made.prefix.labels[i] = NO_LABEL;
        made.prefix.loss_weight[i] = 1;
    }
    for (int branch = 0; branch < made.n_branches; branch++) {
        char whole[64];
        snprintf(
            whole, sizeof whole, "%s %llu", text,
            (unsigned long long)(2 + rng_below(key, 100 * number + 10 + (uint64_t)branch, 16)));
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

/* What is compared, and how often. */
typedef struct comparison {
    uint64_t first_seed;
    int draws;
    int weighting;
    const char *adapted; /* the targets of adapters; NULL: none */
    const char *frozen;  /* a pattern of names; NULL: nothing is */
    model_options options;
} comparison;

/* The loss, the gradient of each parameter (NULL if it is frozen) and how many tokens each expert
 * of each layer got. */
typedef struct result {
    double loss, **grad;
    int32_t *expert_count;
} result;

static size_t expert_count_bytes(const fixture *setup)
{
    return (size_t)(setup->dims.text.layers * setup->dims.text.experts) * sizeof(int32_t);
}

static result run_rows(fixture *setup, const row *rows, int count, int weighting, bool fixed_shapes)
{
    model_options options = setup->options;
    options.cap = (batch_caps){0};
    batch_caps_for(rows, count, fixed_shapes ? 64 : 1, fixed_shapes ? 32 : 4, &options.cap);
    options.cap.docs += fixed_shapes ? 3 : 0;
    fixture_model(setup, &options, fixed_shapes);
    stager_weigh(setup->staging, weighting);
    result out = {.loss = fixture_forward_backward(setup, rows, count),
                  .grad = calloc((size_t)setup->registry->count, sizeof *out.grad),
                  .expert_count = malloc(expert_count_bytes(setup))};
    assert_true(out.grad && out.expert_count);
    for (int64_t i = 0; i < setup->registry->count; i++)
        if (setup->registry->list[i].grad)
            out.grad[i] = fixture_grad(setup, &setup->registry->list[i]);
    memcpy(out.expert_count, model_expert_count(setup->net), expert_count_bytes(setup));
    return out;
}

static void result_done(const fixture *setup, result *out)
{
    for (int64_t i = 0; i < setup->registry->count; i++)
        free(out->grad[i]);
    free(out->grad);
    free(out->expert_count);
}

/* The largest |a - b| / |b| over the gradients of all trained parameters and the loss. */
static double worst_difference(const fixture *setup, const result *got, const result *want)
{
    double worst = fabs(got->loss - want->loss) / fabs(want->loss);
    for (int64_t i = 0; i < setup->registry->count; i++) {
        double difference = 0, size = 0;
        for (int64_t j = 0; want->grad[i] && j < setup->registry->list[i].count; j++) {
            const double wanted = want->grad[i][j], off = got->grad[i][j] - wanted;
            difference += off * off;
            size += wanted * wanted;
        }
        const double share = size > 0 ? sqrt(difference / size) : sqrt(difference);
        worst = share <= worst ? worst : share; /* a NaN is the worst */
    }
    return worst;
}

/* Draws the trees of a seed. Returns how many samples they have. */
static int draw_trees(fixture *setup, uint64_t seed, tree *trees, row *samples)
{
    const rng_key key = rng_key_make(seed, "trees");
    int count = 0;
    for (int i = 0; i < TREES_MAX; i++) {
        trees[i] = draw_tree(setup, key, (uint64_t)i);
        for (int branch = 0; branch < trees[i].n_branches; branch++)
            samples[count++] = trees[i].sample[branch];
    }
    return count;
}

/* How many rows of trees were drawn, and in how many of them a token got another expert. */
static int rows_drawn, rows_flipped;

/* Compares the trees of a seed in one row with their samples, each in its own row. False if a
 * token got another expert. */
static bool compare_seed(fixture *setup, const comparison *how, uint64_t seed)
{
    static tree trees[TREES_MAX];
    static row samples[SAMPLES_MAX];
    const int count = draw_trees(setup, seed, trees, samples);
    const row packed = pack_trees(setup, trees, TREES_MAX);
    int64_t apart = 0;
    for (int i = 0; i < count; i++)
        apart += samples[i].n_tokens;
    result want = run_rows(setup, samples, count, how->weighting, false);
    result got = run_rows(setup, &packed, 1, how->weighting, seed % 2 == 1);
    const bool same = memcmp(got.expert_count, want.expert_count, expert_count_bytes(setup)) == 0;
    const double worst = worst_difference(setup, &got, &want);
    print_message("seed %llu: %d branches first, %lld tokens instead of %lld, largest difference "
                  "%.2g%s\n",
                  (unsigned long long)seed, trees[0].n_branches, (long long)packed.n_tokens,
                  (long long)apart, worst, same ? "" : " with another expert");
    assert_true(!same || worst <= most);
    result_done(setup, &want);
    result_done(setup, &got);
    arena_reset(&setup->rows);
    rows_drawn++;
    rows_flipped += !same;
    return same;
}

static void compare_seeds(const comparison *how)
{
    fixture setup;
    model_dims dims;
    assert_ok(dims_preset("debug", &dims));
    fixture_open(&setup, &dims);
    params_release(setup.registry, setup.queue);
    if (how->adapted)
        assert_ok(lora_add(setup.registry, (lora_kind){.rank = 3, .alpha = 6}, how->adapted));
    for (int64_t i = 0; i < setup.registry->count && how->frozen; i++)
        setup.registry->list[i].frozen |=
            fnmatch(how->frozen, setup.registry->list[i].name, 0) == 0;
    fixture_alloc_anew(&setup);
    setup.options = how->options;
    setup.options.training = true;
    model_options_freeze(&setup.options, setup.registry);
    uint64_t seed = how->first_seed;
    for (int done = 0, left = 2 * how->draws; done < how->draws; left--) {
        assert_true(left > 0);
        done += compare_seed(&setup, how, seed++);
    }
    fixture_close(&setup);
}

/* Draws in double, and in float, where they take less time and a hundred are wanted, except under a
 * sanitizer. */
static int draws_of(int in_double)
{
    return IN_DOUBLE || HARNESS_SANITIZED ? in_double : 6 * in_double;
}

static void test_prefix__is_each_sample_alone(void **state)
{
    (void)state;
    compare_seeds(&(comparison){.first_seed = 1000, .draws = draws_of(6)});
}

static void test_prefix__under_activation_checkpointing(void **state)
{
    (void)state;
    compare_seeds(&(comparison){
        .first_seed = 2000, .draws = draws_of(2), .options.recomputed = fixture_full(true)});
}

static void test_prefix__with_adapters(void **state)
{
    (void)state;
    static const char targets[] = "q_proj,k_proj,v_proj,o_proj,gate,gate_up_proj,down_proj";
    compare_seeds(&(comparison){.first_seed = 3000, .draws = draws_of(1), .adapted = targets});
    compare_seeds(&(comparison){.first_seed = 3500,
                                .draws = draws_of(1),
                                .adapted = targets,
                                .options.recomputed = fixture_full(true)});
}

/* The backward ends at a layer of the decoder, or passes through it to the tower. */
static void test_prefix__with_frozen_parts(void **state)
{
    (void)state;
    static const char *const patterns[] = {"*visual*", "*language_model.layers.*"};
    for (uint64_t i = 0; i < 2; i++)
        compare_seeds(&(comparison){
            .first_seed = 4000 + 500 * i, .draws = draws_of(1), .frozen = patterns[i]});
}

static void test_prefix__whatever_weighs_samples(void **state)
{
    (void)state;
    static const int weightings[] = {WEIGHTING_SAMPLE, WEIGHTING_SQRT};
    for (uint64_t i = 0; i < 2; i++)
        compare_seeds(&(comparison){
            .first_seed = 5000 + 500 * i, .draws = draws_of(2), .weighting = weightings[i]});
}

/* The load-balancing loss counts the tokens of a prefix once for each of its branches. */
static void test_prefix__balances_experts_as_samples_do(void **state)
{
    (void)state;
    compare_seeds(
        &(comparison){.first_seed = 6000, .draws = draws_of(3), .options.router_aux_coef = 0.5});
}

/* Comes last. */
static void test_prefix__seldom_changes_an_expert(void **state)
{
    (void)state;
    print_message("%d rows, %d of them with another expert\n", rows_drawn, rows_flipped);
    assert_true(rows_drawn >= draws_of(17));
    if (IN_DOUBLE || !HARNESS_SANITIZED) /* one in a hundred may be among the few rows in float */
        assert_true(100 * rows_flipped <= (IN_DOUBLE ? 0 : rows_drawn));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefix__is_each_sample_alone),
        cmocka_unit_test(test_prefix__under_activation_checkpointing),
        cmocka_unit_test(test_prefix__with_adapters),
        cmocka_unit_test(test_prefix__with_frozen_parts),
        cmocka_unit_test(test_prefix__whatever_weighs_samples),
        cmocka_unit_test(test_prefix__balances_experts_as_samples_do),
        cmocka_unit_test(test_prefix__seldom_changes_an_expert),
    };
    return cmocka_run_group_tests_name("prefix", tests, NULL, NULL);
}
