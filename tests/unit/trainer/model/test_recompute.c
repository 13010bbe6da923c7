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
    fixture f;
    row r;
    model_options o;
    double loss, **grad; /* what a run that recomputes nothing gives */
} scene;

/* A model of three layers, the middle one dense. */
static void open_scene(scene *s)
{
    model_dims d;
    assert_ok(dims_preset("debug", &d));
    d.text.layers = 3;
    d.text.dense_layers[0] = 1;
    d.text.n_dense_layers = 1;
    d.vision.depth = 3;
    d.vision.n_deepstack = 2;
    d.vision.deepstack[0] = 0;
    d.vision.deepstack[1] = 2;
    fixture_open(&s->f, &d);
    s->r = fixture_row(&s->f, debug_documents, 3, true);
    s->o = (model_options){.training = true, .router_aux_coef = 0.01};
    batch_caps_for(&s->r, 1, 1, 4, &s->o.cap);
    fixture_model(&s->f, &s->o, false);
    s->loss = fixture_forward_backward(&s->f, &s->r, 1);
    s->grad = calloc((size_t)s->f.p->count, sizeof *s->grad);
    assert_non_null(s->grad);
    for (int64_t i = 0; i < s->f.p->count; i++)
        s->grad[i] = fixture_grad(&s->f, &s->f.p->list[i]);
}

static void close_scene(scene *s)
{
    for (int64_t i = 0; i < s->f.p->count; i++)
        free(s->grad[i]);
    free(s->grad);
    fixture_close(&s->f);
}

static void check_bits(scene *s, const recompute *text, const recompute *vision)
{
    s->o.recomputed = (recomputes){*text, *vision};
    fixture_model(&s->f, &s->o, false);
    /* Runs twice, since a step must not depend on what the last one left in memory. */
    for (int time = 0; time < 2; time++)
        assert_true(fixture_forward_backward(&s->f, &s->r, 1) == s->loss);
    for (int64_t i = 0; i < s->f.p->count; i++) {
        const param *p = &s->f.p->list[i];
        double *got = fixture_grad(&s->f, p);
        if (memcmp(got, s->grad[i], (size_t)p->count * sizeof *got) != 0)
            fail_msg("%s: text %#x every %lld, vision %#x every %lld", p->name, text->what,
                     (long long)text->every, vision->what, (long long)vision->every);
        free(got);
    }
}

static void test_recompute__every_pair_of_modes_changes_no_bit(void **state)
{
    (void)state;
    scene s;
    open_scene(&s);
    for (int text = 0; text < RULES; text++)
        for (int vision = 0; vision < RULES; vision++)
            check_bits(&s, &rules[text], &rules[vision]);
    close_scene(&s);
}

/* Tries every set of products that a layer can keep. */
static void test_recompute__every_choice_changes_no_bit(void **state)
{
    (void)state;
    scene s;
    open_scene(&s);
    for (int set = 0; set < 32; set++) {
        recompute one = {.what = RECOMPUTE_CHEAP};
        for (int i = 0; i < 5; i++)
            one.what |= set & (1 << i) ? products[i] : 0;
        check_bits(&s, &one, &one);
    }
    close_scene(&s);
}

/* Arrays that are recomputed take memory once for all layers, kept arrays take it once per
 * layer. */
static void test_recompute__memory_is_what_is_kept(void **state)
{
    (void)state;
    model_dims d;
    assert_ok(dims_preset("debug", &d)); /* all layers are alike */
    model_options o = {
        .cap = {.tokens = 96, .patches = 64, .targets = 96, .docs = 4, .items = 4, .frames = 4},
        .training = true};
    model_regions full, now;
    o.recomputed.text.what = o.recomputed.vision.what = RECOMPUTE_ALL;
    assert_ok(model_regions_of(&d, &o, &backend_cpu, &full));
    for (int set = 0; set < 32; set++) {
        unsigned kept = RECOMPUTE_ROUTE;
        for (int i = 0; i < 5; i++)
            kept |= set & (1 << i) ? products[i] : 0;
        o.recomputed.text.what = o.recomputed.vision.what = RECOMPUTE_ALL & ~kept;
        int64_t layer, block, of_fc1, mergers;
        assert_ok(model_regions_of(&d, &o, &backend_cpu, &now));
        assert_ok(model_kinds_bytes(&d, &o, &backend_cpu, kept, &layer, &block));
        assert_ok(model_kinds_bytes(&d, &o, &backend_cpu, RECOMPUTE_PROJ, &of_fc1, &mergers));
        /* The first product of a merger has as many elements as the projection of a block. */
        mergers *= kept & RECOMPUTE_FC1 ? 1 + d.vision.n_deepstack : 0;
        assert_int_equal(now.text_kept - full.text_kept, layer * d.text.layers);
        assert_int_equal(now.vision_kept - full.vision_kept, block * d.vision.depth + mergers);
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

static status counted_gemm(stream *s, const gemm_args *a)
{
    count.dense += a->m * a->n * a->k;
    return real->gemm(s, a);
}

static status counted_grouped(stream *s, const grouped_gemm_args *a)
{
    count.experts += a->offset[a->experts] * a->k * a->n;
    return real->grouped_gemm(s, a);
}

static status counted_attention(stream *s, const attention_fwd_args *a)
{
    count.attention[a->causal]++;
    return real->attention_fwd(s, a);
}

static void count_step(scene *s, const recomputes *recomputed)
{
    s->o.recomputed = *recomputed;
    fixture_model(&s->f, &s->o, false);
    ops_table counting = *s->f.s->ops;
    real = s->f.s->ops;
    counting.gemm = counted_gemm;
    counting.grouped_gemm = counted_grouped;
    counting.attention_fwd = counted_attention;
    s->f.s->ops = &counting;
    memset(&count, 0, sizeof count);
    fixture_forward_backward(&s->f, &s->r, 1);
    s->f.s->ops = real;
}

static void test_recompute__plan_counts_the_work(void **state)
{
    (void)state;
    scene s;
    open_scene(&s);
    training_share share;
    groups_share(s.f.p, &s.f.d, &share);
    count_step(&s, &(recomputes){0});
    const int64_t dense = count.dense, experts = count.experts;
    const flops one_each = {.text_attention = s.f.d.text.layers,
                            .vision_attention = s.f.d.vision.depth};
    const int64_t patches = s.r.n_patches + s.r.n_video_patches;
    assert_int_equal(count.attention[1], s.f.d.text.layers);
    for (int text = 0; text < RULES; text++)
        for (int vision = 0; vision < RULES; vision++) {
            const recomputes recomputed = {rules[text], rules[vision]};
            recompute_flops want;
            recompute_plan_count(&recomputed, &s.f.d, &share, &one_each, s.r.n_tokens, patches,
                                 &want);
            count_step(&s, &recomputed);
            assert_int_equal(2 * (count.dense - dense), want.dense);
            assert_int_equal(2 * (count.experts - experts), want.experts);
            assert_int_equal(count.attention[1] - s.f.d.text.layers, want.attention);
            assert_int_equal(count.attention[0] - s.f.d.vision.depth, want.vision_attention);
        }
    close_scene(&s);
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
