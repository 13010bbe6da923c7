/* test_freeze.c: frozen parameters have no gradient, no moments and no backward work, and every
 * other gradient keeps its bits. Also the rules of optimizer.groups and of freeze.*. */
#include "tests/unit/trainer/model/fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/ops/table.h"
#include "trainer/optim/groups.h"

/* Counts the ops that reach the device. */
static struct {
    int gemm, grouped_wgrad, attention_bwd, norm_bwd;
} count;
static const struct ops_table *real;

static status counted_gemm(stream *s, const gemm_args *a)
{
    count.gemm += a->c_acc;
    return real->gemm(s, a);
}

static status counted_grouped(stream *s, const grouped_gemm_args *a)
{
    count.grouped_wgrad += a->mode == GROUPED_WGRAD;
    return real->grouped_gemm(s, a);
}

static status counted_attention(stream *s, const attention_bwd_args *a)
{
    count.attention_bwd++;
    return real->attention_bwd(s, a);
}

static conf plain_conf(void)
{
    return (conf){.optimizer_groups = "",
                  .freeze_pattern = "",
                  .optimizer_lr = 1e-3,
                  .optimizer_weight_decay = 0.1};
}

typedef struct grads {
    double **of; /* [p->n]; NULL if frozen */
    int64_t activation_bytes;
} grads;

static grads collect_gradients(const conf *c, bool again)
{
    fixture f;
    model_dims d;
    assert_ok(dims_preset("debug", &d));
    fixture_open(&f, &d);
    assert_ok(groups_apply(c, f.p));
    fixture_alloc_anew(&f);
    row r = fixture_row(&f, debug_documents, 3, true);
    model_options o = {.training = true, .recomputed = fixture_full(again)};
    batch_caps_for(&r, 1, 1, 4, &o.cap);
    model_options_freeze(&o, f.p);
    fixture_model(&f, &o, false);
    ops_table counting = *f.s->ops;
    real = f.s->ops;
    counting.gemm = counted_gemm;
    counting.grouped_gemm = counted_grouped;
    counting.attention_bwd = counted_attention;
    f.s->ops = &counting;
    memset(&count, 0, sizeof count);
    fixture_forward_backward(&f, &r, 1);
    f.s->ops = real;
    grads g = {.of = calloc((size_t)f.p->count, sizeof *g.of)};
    assert_non_null(g.of);
    assert_ok(model_bytes(&d, &o, &backend_cpu, &g.activation_bytes));
    for (int64_t i = 0; i < f.p->count; i++) {
        const param *p = &f.p->list[i];
        assert_int_equal(p->frozen, p->grad == NULL);
        assert_int_equal(p->frozen, p->moment1 == NULL);
        if (!p->frozen)
            g.of[i] = fixture_grad(&f, p);
    }
    fixture_close(&f);
    return g;
}

static void grads_done(grads *g, const params *p)
{
    for (int64_t i = 0; i < p->count; i++)
        free(g->of[i]);
    free(g->of);
}

static void test_freeze__others_keep_their_gradients(void **state)
{
    (void)state;
    model_dims d;
    params *p;
    assert_ok(dims_preset("debug", &d));
    assert_ok(params_new(&d, &p));
    const int text = (int)d.text.layers, tower = (int)d.vision.depth;
    const struct {
        const char *pattern;
        bool vision, merger, text, router, experts;
        int attention_bwd; /* calls */
    } cases[] = {
        {.vision = true, .attention_bwd = text},
        {.vision = true, .merger = true, .attention_bwd = text},
        {.merger = true, .attention_bwd = text + tower},
        {.text = true, .attention_bwd = text + tower},
        {.text = true, .router = true, .experts = true, .attention_bwd = text + tower},
        {.vision = true, .text = true, .router = true, .experts = true, .attention_bwd = text},
        {.experts = true, .attention_bwd = text + tower},
        {.router = true, .attention_bwd = text + tower},
        {.vision = true,
         .merger = true,
         .pattern = "*layers.0.*,*embed_tokens*",
         .attention_bwd = text - 1},
        {.vision = true, .merger = true, .pattern = "*layers.*,*embed_tokens*"},
        {.pattern = "*visual.blocks.0.*,*patch_embed*,*pos_embed*",
         .attention_bwd = text + tower - 1},
        {.pattern = "*norm*,*bias", .attention_bwd = text + tower},
    };
    conf none = plain_conf();
    grads want = collect_gradients(&none, false);
    const int full_gemm = count.gemm, full_grouped = count.grouped_wgrad;
    assert_int_equal(count.attention_bwd, text + tower);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        for (int again = 0; again < (k % 4 ? 1 : 2); again++) {
            conf c = plain_conf();
            c.freeze_vision = cases[k].vision;
            c.freeze_merger = cases[k].merger;
            c.freeze_text = cases[k].text;
            c.freeze_router = cases[k].router;
            c.freeze_experts = cases[k].experts;
            c.freeze_pattern = cases[k].pattern ? cases[k].pattern : "";
            grads got = collect_gradients(&c, again);
            int64_t frozen = 0;
            for (int64_t i = 0; i < p->count; i++) {
                frozen += !got.of[i];
                if (got.of[i] &&
                    memcmp(got.of[i], want.of[i], (size_t)p->list[i].count * sizeof(double)) != 0)
                    fail_msg("case %zu: the gradient of %s changed", k, p->list[i].name);
            }
            assert_true(frozen > 0);
            assert_int_equal(count.attention_bwd, cases[k].attention_bwd);
            assert_int_equal(count.grouped_wgrad, cases[k].experts                ? 0
                                                  : cases[k].attention_bwd == 0   ? 0
                                                  : cases[k].attention_bwd < text ? full_grouped - 2
                                                                                  : full_grouped);
            assert_true(count.gemm <= full_gemm);
            if (cases[k].vision && !again)
                assert_true(got.activation_bytes < want.activation_bytes);
            grads_done(&got, p);
        }
    grads_done(&want, p);
    params_free(&p);
}

/* The position table is frozen with the tower and also with the mergers, as in Qwen's recipes. */
static void test_freeze__flags_cover_every_parameter(void **state)
{
    (void)state;
    model_dims d;
    assert_ok(dims_preset("debug", &d));
    for (int merger = 0; merger < 2; merger++) {
        params *p;
        conf c = plain_conf();
        c.freeze_vision = !merger;
        c.freeze_merger = merger;
        assert_ok(params_new(&d, &p));
        assert_ok(groups_apply(&c, p));
        for (int64_t i = 0; i < p->count; i++) {
            const char *name = p->list[i].name;
            bool table = strstr(name, "pos_embed"), is_merger = strstr(name, "merger");
            bool visual = strncmp(name, "model.visual.", 13) == 0;
            bool want = table || (merger ? is_merger : visual && !is_merger);
            if (p->list[i].frozen != want)
                fail_msg("%s is %s", name, p->list[i].frozen ? "frozen" : "not frozen");
        }
        params_free(&p);
    }
}

static void test_groups__rates_and_decays(void **state)
{
    (void)state;
    model_dims d;
    params *p;
    conf c = plain_conf();
    c.optimizer_groups = "vision lr=1e-5; merger lr=2e-3 decay=0; *linear_fc2.weight decay=0.5;"
                         " lm_head.weight frozen ;";
    assert_ok(dims_preset("debug", &d));
    assert_ok(params_new(&d, &p));
    assert_ok(groups_apply(&c, p));
    const struct {
        const char *name;
        double factor, decay;
        bool frozen;
    } want[] = {
        {"model.visual.blocks.0.attn.qkv.weight", 0.01, -1, false},
        {"model.visual.pos_embed.weight", 2, 0, false}, /* two match: the later wins */
        {"model.visual.merger.linear_fc1.weight", 2, 0, false},
        {"model.visual.merger.linear_fc2.weight", 2, 0.5, false},
        {"model.visual.blocks.1.mlp.linear_fc2.weight", 0.01, 0.5, false},
        {"model.language_model.norm.weight", 1, -1, false},
        {"lm_head.weight", 1, -1, true},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const param *q = params_find(p, want[i].name);
        assert_non_null(q);
        assert_true(q->lr_factor > want[i].factor * 0.999999 &&
                    q->lr_factor < want[i].factor * 1.000001);
        assert_true(q->own_decay == want[i].decay);
        assert_int_equal(q->frozen, want[i].frozen);
    }
    char text[4096] = "";
    FILE *f = fmemopen(text, sizeof text, "w");
    assert_non_null(f);
    groups_print(&c, p, f);
    fclose(f);
    assert_non_null(strstr(text, "frozen"));
    assert_non_null(strstr(text, "are trained"));
    params_free(&p);
}

static void test_groups__bad_rules_are_refused(void **state)
{
    (void)state;
    model_dims d;
    assert_ok(dims_preset("debug", &d));
    const struct {
        const char *groups, *pattern, *words;
        bool all;
    } cases[] = {
        {"visoin lr=1", "", "visoin", false},     {"vision rate=1", "", "rate=1", false},
        {"vision lr=-1", "", "lr=-1", false},     {"vision lr=1e", "", "lr=1e", false},
        {"", "*layers.99.*", "layers.99", false}, {"", "", "nothing to train", true},
        {"", "*", "nothing to train", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        params *p;
        conf c = plain_conf();
        c.optimizer_groups = cases[i].groups;
        c.freeze_pattern = cases[i].pattern;
        c.freeze_vision = c.freeze_merger = c.freeze_text = c.freeze_router = c.freeze_experts =
            cases[i].all;
        assert_ok(params_new(&d, &p));
        assert_fails(ST_CONFIG, groups_apply(&c, p), cases[i].words);
        params_free(&p);
    }
}

/* With everything trained the FLOPs are those of equations.md. A frozen tower costs only its
 * forward pass, whether the mergers are trained or not. */
static void test_groups__useful_flops(void **state)
{
    (void)state;
    model_dims d;
    const int32_t grid[] = {1, 30, 40};
    flops f;
    assert_ok(dims_preset("qwen3-vl-30b-a3b", &d));
    dims_flops(&d, 340, document_pairs(340), grid, 1, &f);
    const int64_t tower = f.patch_embed + f.vision_blocks + f.vision_attention;
    for (int kind = 0; kind < 4; kind++) {
        params *p;
        training_share share;
        conf c = plain_conf();
        c.freeze_vision = kind > 0;
        c.freeze_merger = kind > 1;
        c.freeze_text = c.freeze_router = c.freeze_experts = kind == 3;
        if (kind == 3) {
            c.freeze_merger = false;
        }
        assert_ok(params_new(&d, &p));
        assert_ok(groups_apply(&c, p));
        groups_share(p, &d, &share);
        int64_t got = groups_training_flops(&f, &share);
        int64_t text = f.text_linear + f.text_attention + f.head;
        int64_t want = kind == 0   ? 10068256358400
                       : kind == 1 ? 3 * text + tower + 3 * f.mergers
                       : kind == 2 ? 3 * text + tower + f.mergers
                                   : 2 * text + f.text_attention + tower + 3 * f.mergers;
        assert_int_equal(got, want);
        params_free(&p);
    }
}

static void test_groups__useful_flops_of_adapters(void **state)
{
    (void)state;
    model_dims d;
    params *p;
    const int32_t grid[] = {1, 30, 40};
    flops f;
    training_share share;
    conf c = plain_conf();
    c.lora_rank = 8;
    c.lora_alpha = 16;
    c.lora_targets = "q_proj,k_proj,v_proj,o_proj,gate_up_proj,down_proj";
    assert_ok(dims_preset("qwen3-vl-30b-a3b", &d));
    dims_flops(&d, 340, document_pairs(340), grid, 1, &f);
    assert_ok(params_new(&d, &p));
    assert_ok(groups_apply(&c, p));
    groups_share(p, &d, &share);
    const int64_t attention = 2 * (2048 + 4096) + 2 * (2048 + 512);
    const int64_t experts = (2048 + 2 * 768) + (768 + 2048);
    const int64_t adapters = 2 * 340 * 48 * 8 * (attention + 8 * experts);
    assert_int_equal(params_trained(p), 48 * 8 * (attention + 128 * experts));
    /* All of the forward pass, the backward pass through the text (whose own matrices need no
     * gradient), and the adapters three times. */
    assert_int_equal(groups_training_flops(&f, &share),
                     f.forward + f.text_linear + 2 * f.text_attention + f.head + 3 * adapters);
    params_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_freeze__others_keep_their_gradients),
        cmocka_unit_test(test_freeze__flags_cover_every_parameter),
        cmocka_unit_test(test_groups__rates_and_decays),
        cmocka_unit_test(test_groups__bad_rules_are_refused),
        cmocka_unit_test(test_groups__useful_flops),
        cmocka_unit_test(test_groups__useful_flops_of_adapters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
