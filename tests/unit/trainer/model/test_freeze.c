/* SPDX-License-Identifier: Apache-2.0 */
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

static status counted_gemm(stream *queue, const gemm_args *args)
{
    count.gemm += args->c_acc;
    return real->gemm(queue, args);
}

static status counted_grouped(stream *queue, const grouped_gemm_args *args)
{
    count.grouped_wgrad += args->mode == GROUPED_WGRAD;
    return real->grouped_gemm(queue, args);
}

static status counted_attention(stream *queue, const attention_bwd_args *args)
{
    count.attention_bwd++;
    return real->attention_bwd(queue, args);
}

static conf plain_conf(void)
{
    return (conf){.optimizer_groups = "",
                  .freeze_pattern = "",
                  .optimizer_lr = 1e-3,
                  .optimizer_weight_decay = 0.1};
}

typedef struct grads {
    double **of; /* [registry->count]; NULL if frozen */
    int64_t activation_bytes;
} grads;

static grads collect_gradients(const conf *options, bool again)
{
    fixture setup;
    model_dims dims;
    assert_ok(dims_preset("debug", &dims));
    fixture_open(&setup, &dims);
    assert_ok(groups_apply(options, setup.registry));
    fixture_alloc_anew(&setup);
    row packed = fixture_row(&setup, debug_documents, 3, true);
    model_options how = {.training = true, .recomputed = fixture_full(again)};
    batch_caps_for(&packed, 1, 1, 4, &how.cap);
    model_options_freeze(&how, setup.registry);
    fixture_model(&setup, &how, false);
    ops_table counting = *setup.queue->ops;
    real = setup.queue->ops;
    counting.gemm = counted_gemm;
    counting.grouped_gemm = counted_grouped;
    counting.attention_bwd = counted_attention;
    setup.queue->ops = &counting;
    memset(&count, 0, sizeof count);
    fixture_forward_backward(&setup, &packed, 1);
    setup.queue->ops = real;
    grads sums = {.of = calloc((size_t)setup.registry->count, sizeof *sums.of)};
    assert_non_null(sums.of);
    model_regions regions;
    assert_ok(model_regions_of(&dims, &how, &backend_cpu, &regions));
    sums.activation_bytes = regions.total;
    for (int64_t i = 0; i < setup.registry->count; i++) {
        const param *weight = &setup.registry->list[i];
        assert_int_equal(weight->frozen, weight->grad == NULL);
        assert_int_equal(weight->frozen, weight->moment1 == NULL);
        if (!weight->frozen)
            sums.of[i] = fixture_grad(&setup, weight);
    }
    fixture_close(&setup);
    return sums;
}

static void grads_done(grads *sums, const params *registry)
{
    for (int64_t i = 0; i < registry->count; i++)
        free(sums->of[i]);
    free(sums->of);
}

static void test_freeze__others_keep_their_gradients(void **state)
{
    (void)state;
    model_dims dims;
    params *registry;
    assert_ok(dims_preset("debug", &dims));
    assert_ok(params_new(&dims, &registry));
    const int text = (int)dims.text.layers, tower = (int)dims.vision.depth;
    const struct {
        const char *pattern;
        int attention_bwd; /* calls */
    } cases[] = {
        {"vision", text},
        {"vision,merger", text},
        {"merger", text + tower},
        {"text", text + tower},
        {"text,router,experts", text + tower},
        {"vision,text,router,experts", text},
        {"experts", text + tower},
        {"router", text + tower},
        {"vision,merger,*layers.0.*,*embed_tokens*", text - 1},
        {"vision,merger,*layers.*,*embed_tokens*", 0},
        {"*visual.blocks.0.*,*patch_embed*,*pos_embed*", text + tower - 1},
        {"*norm*,*bias", text + tower},
    };
    conf none = plain_conf();
    grads want = collect_gradients(&none, false);
    const int full_gemm = count.gemm, full_grouped = count.grouped_wgrad;
    assert_int_equal(count.attention_bwd, text + tower);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        for (int again = 0; again < (k % 4 ? 1 : 2); again++) {
            conf options = plain_conf();
            options.freeze_pattern = cases[k].pattern;
            grads got = collect_gradients(&options, again);
            int64_t frozen = 0;
            for (int64_t i = 0; i < registry->count; i++) {
                frozen += !got.of[i];
                if (got.of[i] && memcmp(got.of[i], want.of[i],
                                        (size_t)registry->list[i].count * sizeof(double)) != 0)
                    fail_msg("case %zu: the gradient of %s changed", k, registry->list[i].name);
            }
            assert_true(frozen > 0);
            assert_int_equal(count.attention_bwd, cases[k].attention_bwd);
            assert_int_equal(count.grouped_wgrad, strstr(cases[k].pattern, "experts") ? 0
                                                  : cases[k].attention_bwd == 0       ? 0
                                                  : cases[k].attention_bwd < text ? full_grouped - 2
                                                                                  : full_grouped);
            assert_true(count.gemm <= full_gemm);
            if (strstr(cases[k].pattern, "vision") && !again)
                assert_true(got.activation_bytes < want.activation_bytes);
            grads_done(&got, registry);
        }
    grads_done(&want, registry);
    params_free(&registry);
}

/* The position table is frozen with the tower and also with the mergers, as in Qwen's recipes. */
static void test_freeze__flags_cover_every_parameter(void **state)
{
    (void)state;
    model_dims dims;
    assert_ok(dims_preset("debug", &dims));
    for (int merger = 0; merger < 2; merger++) {
        params *registry;
        conf options = plain_conf();
        options.freeze_pattern = merger ? "merger" : "vision";
        assert_ok(params_new(&dims, &registry));
        assert_ok(groups_apply(&options, registry));
        for (int64_t i = 0; i < registry->count; i++) {
            const char *name = registry->list[i].name;
            bool table = strstr(name, "pos_embed"), is_merger = strstr(name, "merger");
            bool visual = strncmp(name, "model.visual.", 13) == 0;
            bool want = table || (merger ? is_merger : visual && !is_merger);
            if (registry->list[i].frozen != want)
                fail_msg("%s is %s", name, registry->list[i].frozen ? "frozen" : "not frozen");
        }
        params_free(&registry);
    }
}

static void test_groups__rates_and_decays(void **state)
{
    (void)state;
    model_dims dims;
    params *registry;
    conf options = plain_conf();
    options.optimizer_groups =
        "vision lr=1e-5; merger lr=2e-3 decay=0; *linear_fc2.weight decay=0.5;"
        " lm_head.weight frozen ;";
    assert_ok(dims_preset("debug", &dims));
    assert_ok(params_new(&dims, &registry));
    assert_ok(groups_apply(&options, registry));
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
        const param *weight = params_find(registry, want[i].name);
        assert_non_null(weight);
        assert_true(weight->lr_factor > want[i].factor * 0.999999 &&
                    weight->lr_factor < want[i].factor * 1.000001);
        assert_true(weight->own_decay == want[i].decay);
        assert_int_equal(weight->frozen, want[i].frozen);
    }
    char text[4096] = "";
    FILE *file = fmemopen(text, sizeof text, "w");
    assert_non_null(file);
    groups_print(&options, registry, file);
    fclose(file);
    assert_non_null(strstr(text, "frozen"));
    assert_non_null(strstr(text, "are trained"));
    params_free(&registry);
}

static void test_groups__bad_rules_are_refused(void **state)
{
    (void)state;
    model_dims dims;
    assert_ok(dims_preset("debug", &dims));
    const struct {
        const char *groups, *pattern, *words;
    } cases[] = {
        {"visoin lr=1", "", "visoin"},
        {"vision rate=1", "", "rate=1"},
        {"vision lr=-1", "", "lr=-1"},
        {"vision lr=1e", "", "lr=1e"},
        {"", "*layers.99.*", "layers.99"},
        {"", "*", "nothing to train"},
        {"", "vision,merger,text,router,experts", "nothing to train"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        params *registry;
        conf options = plain_conf();
        options.optimizer_groups = cases[i].groups;
        options.freeze_pattern = cases[i].pattern;
        assert_ok(params_new(&dims, &registry));
        assert_fails(ST_CONFIG, groups_apply(&options, registry), cases[i].words);
        params_free(&registry);
    }
}

/* With everything trained the FLOPs are those of equations.md. A frozen tower costs only its
 * forward pass, whether the mergers are trained or not. */
static void test_groups__useful_flops(void **state)
{
    (void)state;
    model_dims dims;
    const int32_t grid[] = {1, 30, 40};
    flops work;
    assert_ok(dims_preset("qwen3-vl-30b-a3b", &dims));
    dims_flops(&dims, 340, 340, document_pairs(340), grid, 1, &work);
    const int64_t tower = work.patch_embed + work.vision_blocks + work.vision_attention;
    static const char *const frozen[] = {"", "vision", "vision,merger",
                                         "vision,text,router,experts"};
    for (int kind = 0; kind < 4; kind++) {
        params *registry;
        training_share share;
        conf options = plain_conf();
        options.freeze_pattern = frozen[kind];
        assert_ok(params_new(&dims, &registry));
        assert_ok(groups_apply(&options, registry));
        groups_share(registry, &dims, &share);
        int64_t got = groups_training_flops(&work, &share);
        int64_t text = work.text_linear + work.text_attention + work.head;
        int64_t want = kind == 0   ? 10068256358400
                       : kind == 1 ? 3 * text + tower + 3 * work.mergers
                       : kind == 2 ? 3 * text + tower + work.mergers
                                   : 2 * text + work.text_attention + tower + 3 * work.mergers;
        assert_int_equal(got, want);
        params_free(&registry);
    }
}

static void test_groups__useful_flops_of_adapters(void **state)
{
    (void)state;
    model_dims dims;
    params *registry;
    const int32_t grid[] = {1, 30, 40};
    flops work;
    training_share share;
    conf options = plain_conf();
    options.lora_rank = 8;
    options.lora_alpha = 16;
    options.lora_targets = "q_proj,k_proj,v_proj,o_proj,gate_up_proj,down_proj";
    assert_ok(dims_preset("qwen3-vl-30b-a3b", &dims));
    dims_flops(&dims, 340, 340, document_pairs(340), grid, 1, &work);
    assert_ok(params_new(&dims, &registry));
    assert_ok(groups_apply(&options, registry));
    groups_share(registry, &dims, &share);
    const int64_t attention = 2 * (2048 + 4096) + 2 * (2048 + 512);
    const int64_t experts = (2048 + 2 * 768) + (768 + 2048);
    const int64_t adapters = 2 * 340 * 48 * 8 * (attention + 8 * experts);
    assert_int_equal(params_trained(registry), 48 * 8 * (attention + 128 * experts));
    /* All of the forward pass, the backward pass through the text (whose own matrices need no
     * gradient), and the adapters three times. */
    assert_int_equal(groups_training_flops(&work, &share), work.forward + work.text_linear +
                                                               2 * work.text_attention + work.head +
                                                               3 * adapters);
    params_free(&registry);
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
