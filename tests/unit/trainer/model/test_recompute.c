/* SPDX-License-Identifier: Apache-2.0 */
/* test_recompute.c: activation checkpointing of the text model and the vision tower. Whatever the
 * layers keep or recompute, loss and gradients have the same bits, the memory is the sum of what is
 * kept, and the recomputed multiply-adds are those that `trainer plan` counts. */
#include <stdlib.h>
#include <string.h>

#include "tests/unit/trainer/model/fixture.h"
#include "trainer/ops/table.h"
#include "trainer/plan/recompute_plan.h"

enum {
    PRODUCTS = RECOMPUTE_QKV | RECOMPUTE_ATTENTION | RECOMPUTE_PROJ | RECOMPUTE_FC1 | RECOMPUTE_FC2,
    OP = RECOMPUTE_CHEAP, /* keeps every product */
    LEAN = RECOMPUTE_CHEAP | PRODUCTS,
};
static const unsigned products[] = {RECOMPUTE_QKV, RECOMPUTE_ATTENTION, RECOMPUTE_PROJ,
                                    RECOMPUTE_FC1, RECOMPUTE_FC2};

static const recompute rules[] = {
    {.what = 0},
    {.what = RECOMPUTE_ALL},
    {.what = RECOMPUTE_ALL, .every = 2},
    {.what = OP},
    {.what = LEAN},
    {.what = LEAN, .partly = RECOMPUTE_ATTENTION, .layers = 1},
    {.what = RECOMPUTE_CHEAP | RECOMPUTE_FC1 | RECOMPUTE_FC2, .partly = RECOMPUTE_FC2, .layers = 2},
};
enum { RULES = sizeof rules / sizeof *rules };

typedef struct scene {
    fixture setup;
    row packed;
    model_options options;
    double loss, **grad; /* what a run that recomputes nothing gives */
} scene;

/* A model of three layers, the middle one dense. */
static void open_scene(scene *setup)
{
    model_dims dims;
    assert_ok(dims_preset("debug", &dims));
    dims.text.layers = 3;
    dims.text.dense_layers[0] = 1;
    dims.text.n_dense_layers = 1;
    dims.vision.depth = 3;
    dims.vision.n_deepstack = 2;
    dims.vision.deepstack[0] = 0;
    dims.vision.deepstack[1] = 2;
    fixture_open(&setup->setup, &dims);
    setup->packed = fixture_row(&setup->setup, debug_documents, 3, true);
    setup->options = (model_options){.training = true, .router_aux_coef = 0.01};
    batch_caps_for(&setup->packed, 1, 1, 4, &setup->options.cap);
    fixture_model(&setup->setup, &setup->options, false);
    setup->loss = fixture_forward_backward(&setup->setup, &setup->packed, 1);
    setup->grad = calloc((size_t)setup->setup.registry->count, sizeof *setup->grad);
    assert_non_null(setup->grad);
    for (int64_t i = 0; i < setup->setup.registry->count; i++)
        setup->grad[i] = fixture_grad(&setup->setup, &setup->setup.registry->list[i]);
}

static void close_scene(scene *setup)
{
    for (int64_t i = 0; i < setup->setup.registry->count; i++)
        free(setup->grad[i]);
    free(setup->grad);
    fixture_close(&setup->setup);
}

static void check_bits(scene *setup, const recompute *text, const recompute *vision)
{
    setup->options.recomputed = (recomputes){*text, *vision};
    fixture_model(&setup->setup, &setup->options, false);
    /* Runs twice, since a step must not depend on what the last one left in memory. */
    for (int time = 0; time < 2; time++)
        assert_true(fixture_forward_backward(&setup->setup, &setup->packed, 1) == setup->loss);
    for (int64_t i = 0; i < setup->setup.registry->count; i++) {
        const param *weight = &setup->setup.registry->list[i];
        double *got = fixture_grad(&setup->setup, weight);
        if (memcmp(got, setup->grad[i], (size_t)weight->count * sizeof *got) != 0)
            fail_msg("%s: text %#x every %lld, vision %#x every %lld", weight->name, text->what,
                     (long long)text->every, vision->what, (long long)vision->every);
        free(got);
    }
}

static void test_recompute__every_pair_of_modes_changes_no_bit(void **state)
{
    (void)state;
    scene setup;
    open_scene(&setup);
    for (int text = 0; text < RULES; text++)
        for (int vision = 0; vision < RULES; vision++)
            check_bits(&setup, &rules[text], &rules[vision]);
    close_scene(&setup);
}

/* Tries every set of products that a layer can keep. */
static void test_recompute__every_choice_changes_no_bit(void **state)
{
    (void)state;
    scene setup;
    open_scene(&setup);
    for (int set = 0; set < 32; set++) {
        recompute one = {.what = RECOMPUTE_CHEAP};
        for (int i = 0; i < 5; i++)
            one.what |= set & (1 << i) ? products[i] : 0;
        check_bits(&setup, &one, &one);
    }
    close_scene(&setup);
}

/* Arrays that are recomputed take memory once for all layers, kept arrays take it once per
 * layer. */
static void test_recompute__memory_is_what_is_kept(void **state)
{
    (void)state;
    model_dims dims;
    assert_ok(dims_preset("debug", &dims)); /* all layers are alike */
    model_options options = {
        .cap = {.tokens = 96, .patches = 64, .targets = 96, .docs = 4, .items = 4, .frames = 4},
        .training = true};
    model_regions full, now;
    options.recomputed.text.what = options.recomputed.vision.what = RECOMPUTE_ALL;
    assert_ok(model_regions_of(&dims, &options, &backend_cpu, &full));
    for (int set = 0; set < 32; set++) {
        unsigned kept = RECOMPUTE_ROUTE;
        for (int i = 0; i < 5; i++)
            kept |= set & (1 << i) ? products[i] : 0;
        options.recomputed.text.what = options.recomputed.vision.what = RECOMPUTE_ALL & ~kept;
        int64_t layer, block, of_fc1, mergers;
        assert_ok(model_regions_of(&dims, &options, &backend_cpu, &now));
        assert_ok(model_kinds_bytes(&dims, &options, &backend_cpu, kept, &layer, &block));
        assert_ok(
            model_kinds_bytes(&dims, &options, &backend_cpu, RECOMPUTE_PROJ, &of_fc1, &mergers));
        /* The first product of a merger has as many elements as the projection of a block. */
        mergers *= kept & RECOMPUTE_FC1 ? 1 + dims.vision.n_deepstack : 0;
        assert_int_equal(now.text_kept - full.text_kept, layer * dims.text.layers);
        assert_int_equal(now.vision_kept - full.vision_kept, block * dims.vision.depth + mergers);
        assert_true(now.text_scratch <= full.text_scratch - layer);
    }
}

/* Counts the multiply-adds of products of the forward kind; the difference between two runs is what
 * backward recomputes. */
static struct {
    int64_t dense, experts;
    int attention[2]; /* calls: vision tower, and causal */
} count;
static const struct ops_table *real;

static status counted_gemm(stream *queue, const gemm_args *args)
{
    count.dense += args->m * args->n * args->k;
    return real->gemm(queue, args);
}

static status counted_grouped(stream *queue, const grouped_gemm_args *args)
{
    count.experts += args->offset[args->experts] * args->k * args->n;
    return real->grouped_gemm(queue, args);
}

static status counted_attention(stream *queue, const attention_fwd_args *args)
{
    count.attention[args->causal]++;
    return real->attention_fwd(queue, args);
}

static void count_step(scene *setup, const recomputes *recomputed)
{
    setup->options.recomputed = *recomputed;
    fixture_model(&setup->setup, &setup->options, false);
    ops_table counting = *setup->setup.queue->ops;
    real = setup->setup.queue->ops;
    counting.gemm = counted_gemm;
    counting.grouped_gemm = counted_grouped;
    counting.attention_fwd = counted_attention;
    setup->setup.queue->ops = &counting;
    memset(&count, 0, sizeof count);
    fixture_forward_backward(&setup->setup, &setup->packed, 1);
    setup->setup.queue->ops = real;
}

static void test_recompute__plan_counts_the_work(void **state)
{
    (void)state;
    scene setup;
    open_scene(&setup);
    training_share share;
    groups_share(setup.setup.registry, &setup.setup.dims, &share);
    count_step(&setup, &(recomputes){0});
    const int64_t dense = count.dense, experts = count.experts;
    const layout alone = {.expert = 1, .expert_tensor = 1};
    const flops one_each = {.text_attention = setup.setup.dims.text.layers,
                            .vision_attention = setup.setup.dims.vision.depth};
    const int64_t patches = setup.packed.n_patches + setup.packed.n_video_patches;
    assert_int_equal(count.attention[1], setup.setup.dims.text.layers);
    for (int text = 0; text < RULES; text++)
        for (int vision = 0; vision < RULES; vision++) {
            const recomputes recomputed = {rules[text], rules[vision]};
            recompute_flops want;
            recompute_plan_count(&recomputed, &alone, &setup.setup.dims, &share, &one_each,
                                 setup.packed.n_tokens, patches, &want);
            count_step(&setup, &recomputed);
            assert_int_equal(2 * (count.dense - dense), want.dense);
            assert_int_equal(2 * (count.experts - experts), want.experts);
            assert_int_equal(count.attention[1] - setup.setup.dims.text.layers, want.attention);
            assert_int_equal(count.attention[0] - setup.setup.dims.vision.depth,
                             want.vision_attention);
        }
    close_scene(&setup);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recompute__every_pair_of_modes_changes_no_bit),
        cmocka_unit_test(test_recompute__every_choice_changes_no_bit),
        cmocka_unit_test(test_recompute__memory_is_what_is_kept),
        cmocka_unit_test(test_recompute__plan_counts_the_work),
    };
    return cmocka_run_group_tests_name("recompute", tests, NULL, NULL);
}
