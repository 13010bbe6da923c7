/* SPDX-License-Identifier: Apache-2.0 */
/* test_cost.c: the predictions of `trainer plan`: bytes between ranks against sums made by hand,
 * and times as work over rate. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/trainer/plan/plan_setting.h"
#include "trainer/optim/groups.h"
#include "trainer/plan/layout_plan.h"
#include "trainer/plan/recompute_plan.h"

static cost predict(setting *setup, int mode)
{
    layout degrees;
    cost price;
    recomputes again;
    setup->options.activation_checkpoint_mode = mode;
    assert_ok(layout_of(&setup->options, NULL, &degrees));
    const plan_input in = input_of(setup, &degrees);
    assert_ok(recompute_plan_of(&in, setup->options.training_local_batch_size, &again));
    assert_ok(cost_of(&setup->options, &degrees, &setup->dims, setup->registry, &setup->speeds,
                      &again, &price));
    return price;
}

static void test_cost__one_rank_has_no_traffic(void **state)
{
    (void)state;
    setting setup;
    open_setting(&setup, "qwen3-vl-30b-a3b");
    cost price = predict(&setup, AC_NONE);
    for (int i = 0; i < TRAFFIC_KEYS; i++)
        assert_int_equal(price.traffic[i].bytes, 0);
    expect_share(price.exposed + price.bubble, 0, 0);
    close_setting(&setup);
}

/* Elements that are gathered once a micro-step and not twice: backward finds them still there, or
 * does not read them. */
static double gathered_once(const params *registry)
{
    static const char *const parts[] = {".embed_tokens.", "lm_head.",     ".language_model.norm.",
                                        ".layers.47.",    "patch_embed.", "pos_embed."};
    double bytes = 0;
    for (int64_t i = 0; i < registry->count; i++)
        for (size_t k = 0; k < sizeof parts / sizeof *parts; k++)
            bytes += strstr(registry->list[i].name, parts[k]) ? (double)registry->list[i].count : 0;
    return bytes;
}

static void test_cost__sharded_weights_cross_once_per_pass(void **state)
{
    (void)state;
    setting setup;
    open_setting(&setup, "qwen3-vl-30b-a3b");
    setup.options.parallelism_data_parallel_shard_degree = 8;
    cost price = predict(&setup, AC_NONE);
    const double all = 31070754032.0;
    /* bf16 before the forward and before the backward pass, fp32 after the backward; 7/8 of the
     * bytes come from other ranks, in 4 micro-steps; pieces are rounded up. */
    expect_share((double)price.traffic[TRAFFIC_GATHER].bytes,
                 4 * 2.0 * (2 * all - gathered_once(setup.registry)) * 7 / 8, 1e-5);
    expect_share((double)price.traffic[TRAFFIC_REDUCE].bytes, 4 * 4.0 * all * 7 / 8, 1e-5);
    setup.options.parallelism_fsdp_reshard_after_forward = RESHARD_NEVER;
    cost never = predict(&setup, AC_NONE);
    expect_share((double)never.traffic[TRAFFIC_GATHER].bytes, 4 * 2.0 * all * 7 / 8, 1e-5);
    setup.options.parallelism_fsdp_reshard_after_forward = RESHARD_DEFAULT;
    setup.options.training_local_batch_size = 4;
    cost large = predict(&setup, AC_NONE);
    expect_share((double)large.traffic[TRAFFIC_GATHER].bytes,
                 (double)price.traffic[TRAFFIC_GATHER].bytes / 4, 1e-9);
    close_setting(&setup);
}

static void test_cost__every_dimension_has_its_traffic(void **state)
{
    (void)state;
    setting setup;
    open_setting(&setup, "qwen3-vl-30b-a3b");
    setup.options.parallelism_data_parallel_shard_degree = 1;
    setup.options.parallelism_tensor_parallel_degree = 2;
    cost price = predict(&setup, AC_NONE);
    /* 48 layers; each gathers the input of its heads and reduces their output in both passes, and
     * gathers the input once more for backward. Half of [8192, 2048] in bf16 crosses each time, in
     * 32 micro-steps. */
    expect_share((double)price.traffic[TRAFFIC_TENSOR].bytes, 32.0 * 48 * 5 * 8192 * 2048 * 2 / 2,
                 1e-9);
    /* Recomputation makes both exchanges of the forward pass again. */
    expect_share((double)predict(&setup, AC_FULL).traffic[TRAFFIC_TENSOR].bytes,
                 32.0 * 48 * 7 * 8192 * 2048 * 2 / 2, 1e-9);
    /* The experts' input crosses three times and the rest once: choices as i32, weights as
     * fp32. */
    setup.options.parallelism_expert_tensor_parallel_degree = 2;
    expect_share((double)predict(&setup, AC_NONE).traffic[TRAFFIC_TENSOR].bytes,
                 32.0 * 48 * (10 * 8192.0 * 2048 * 2 + 8192 * 8 * (4 + 3 * 4)) / 2, 1e-9);
    setup.options.parallelism_expert_tensor_parallel_degree = 1;
    assert_int_equal(price.traffic[TRAFFIC_CONTEXT].bytes, 0);
    setup.options.parallelism_tensor_parallel_degree = 1;
    setup.options.parallelism_context_parallel_degree = 2;
    price = predict(&setup, AC_NONE);
    /* Keys and values are gathered in both passes, and their gradients are reduced. */
    expect_share((double)price.traffic[TRAFFIC_CONTEXT].bytes,
                 32.0 * 48 * 3 * 8192 * 2 * 4 * 128 * 2 / 2, 1e-9);
    assert_int_equal(price.traffic[TRAFFIC_TENSOR].bytes, 0);
    setup.options.parallelism_context_parallel_degree = 1;
    setup.options.parallelism_data_parallel_shard_degree = 2;
    setup.options.parallelism_expert_parallel_degree = 2;
    price = predict(&setup, AC_NONE);
    /* The 8 copies of each token travel to their experts and back in both passes, and once more to
     * the experts for backward; the counts travel in both passes; 16 micro-steps. */
    expect_share((double)price.traffic[TRAFFIC_EXPERT].bytes,
                 16.0 * 48 * (5 * 8192.0 * 8 * 2048 * 2 / 2 + 2 * 129 * 4), 1e-9);
    setup.options.parallelism_expert_parallel_degree = 1;
    setup.options.parallelism_data_parallel_shard_degree = 1;
    setup.options.parallelism_pipeline_parallel_degree = 2;
    price = predict(&setup, AC_NONE);
    /* The first stage receives gradients, the second activations. */
    expect_share((double)price.traffic[TRAFFIC_PIPELINE].bytes, 32.0 * 8192 * 2048 * 2, 1e-9);
    layout cut;
    double uneven;
    assert_ok(layout_of(&setup.options, NULL, &cut));
    assert_ok(stage_plan(&setup.options, &setup.dims, setup.registry, &cut));
    assert_ok(stage_plan_uneven(&setup.options, &setup.dims, setup.registry, &cut, &uneven));
    assert_true(uneven > 1 && uneven < 1.02);
    /* 32 + 1 micro-steps at the pace of the slower stage. */
    const double even = price.step - price.update - price.bubble;
    expect_share(price.step - price.update, even * uneven * 33 / 32, 1e-6);
    close_setting(&setup);
}

/* Both moments of float32 cross the link once each way; in an update after the backward pass they
 * can hide beside the update alone. */
static void test_cost__moments_on_the_host_take_the_link(void **state)
{
    (void)state;
    setting setup;
    open_setting(&setup, "qwen3-30b-a3b");
    setup.options.training_local_batch_size = setup.options.training_global_batch_size = 1;
    const cost before = predict(&setup, AC_NONE);
    setup.registry->moments_on_host = true;
    const cost whole = predict(&setup, AC_NONE);
    expect_share(whole.host, 8.0 * 30532122624.0 / setup.speeds.of[RATE_HOST], 1e-9);
    expect_share(whole.host_exposed, whole.host - whole.update, 1e-9);
    expect_share(whole.step, before.step + whole.host_exposed, 1e-9);
    setup.registry->in_backward = true;
    const double compute = whole.dense + whole.experts + whole.attention + whole.memory;
    assert_true(whole.host > compute && before.host == 0);
    expect_share(predict(&setup, AC_NONE).host_exposed, whole.host_exposed - compute * 2 / 3, 1e-9);
    close_setting(&setup);
}

/* Frozen weights come once before the forward and once before the backward pass of each
 * micro-batch, and hide beside these. */
static void test_cost__frozen_weights_on_the_host_come_for_each_pass(void **state)
{
    (void)state;
    setting setup;
    open_setting(&setup, "qwen3-30b-a3b");
    setup.options.training_local_batch_size = 1;
    setup.options.training_global_batch_size = 4;
    for (int64_t i = 0; i < setup.registry->count; i++)
        setup.registry->list[i].frozen = setup.registry->list[i].group == GROUP_EXPERTS;
    const cost before = predict(&setup, AC_NONE);
    setup.registry->frozen_on_host = true;
    const cost price = predict(&setup, AC_NONE);
    const double pass = 4 * 2.0 * 28991029248.0, link = setup.speeds.of[RATE_HOST];
    const double compute = price.dense + price.experts + price.attention + price.memory;
    expect_share(price.host_forward, pass, 1e-6);
    expect_share(price.host_backward, pass, 1e-6);
    assert_true(before.host == 0 && pass / link > compute);
    expect_share(price.host_exposed, 2 * pass / link - compute, 1e-6);
    expect_share(price.step, before.step + price.host_exposed, 1e-9);
    close_setting(&setup);
}

static void test_cost__work_is_divided_by_rates(void **state)
{
    (void)state;
    setting setup;
    open_setting(&setup, "qwen3-30b-a3b");
    cost price = predict(&setup, AC_NONE);
    expect_share(price.experts,
                 3.0 * (double)price.flops.text_experts / setup.speeds.of[RATE_EXPERTS], 1e-9);
    const double forward = (double)price.flops.text_attention;
    expect_share(price.attention,
                 forward / setup.speeds.of[RATE_ATTENTION] +
                     2.5 * forward / setup.speeds.of[RATE_ATTENTION_BACKWARD],
                 1e-9);
    expect_share(price.step,
                 price.dense + price.experts + price.attention + price.memory + price.update, 1e-9);
    expect_share(price.mfu, (double)price.flops.training / price.step / setup.speeds.of[RATE_PEAK],
                 1e-9);
    cost again = predict(&setup, AC_FULL);
    expect_share(again.experts, price.experts * 4 / 3, 1e-9);
    expect_share(again.attention, price.attention + forward / setup.speeds.of[RATE_ATTENTION],
                 1e-9);
    expect_share(again.memory, price.memory * 4 / 3, 1e-9);
    assert_int_equal(again.recomputed, price.flops.text_linear + price.flops.text_attention);
    expect_share(again.step, price.step + again.recompute, 1e-9);
    assert_int_equal(again.flops.training,
                     price.flops.training); /* recomputed work is not useful work */
    setup.speeds.of[RATE_EXPERTS] /= 2;
    expect_share(predict(&setup, AC_NONE).experts, 2 * price.experts, 1e-9);
    close_setting(&setup);
}

/* What adapters of rank 16 on all of attention cost; base: LORA_BASE_*. */
static cost predict_adapters(setting *setup, const char *preset, int base, bool dora, int mode)
{
    const conf options = setup->options;
    params_free(&setup->registry);
    assert_ok(dims_preset(preset, &setup->dims));
    assert_ok(params_new(&setup->dims, &setup->registry));
    setup->options.lora_rank = 16;
    setup->options.lora_dora = dora;
    setup->options.lora_base = base;
    assert_ok(groups_apply(&setup->options, setup->registry));
    const cost price = predict(setup, mode);
    setup->options = options;
    return price;
}

/* Elements of all layers' matrices of attention. */
static double attention_elements(const text_dims *text)
{
    const int64_t wide = text->heads * text->head_dim, narrow = text->kv_heads * text->head_dim;
    return (double)(text->layers * text->hidden * 2 * (wide + narrow));
}

static void test_cost__codes_are_expanded_for_each_product(void **state)
{
    (void)state;
    enum { RANKS = 8, ROUNDS = 7 /* 8 / 1.25, rounded up */ };
    static const char preset[] = "qwen3-30b-a3b";
    const double each = 2 + 36.0 / 64; /* nf4: half a byte of each element, a scale of 64 */
    setting setup;
    open_setting(&setup, preset);
    const text_dims *text = &setup.dims.text;
    const double attention = attention_elements(text);
    const double down = (double)(text->layers * text->experts * text->hidden * text->expert_width);
    const double up = 2 * down; /* gate and up */
    for (int mode = AC_NONE; mode <= AC_FULL; mode += AC_FULL - AC_NONE) {
        const bool full = mode == AC_FULL;
        setup.options.parallelism_data_parallel_shard_degree = 1;
        setup.options.parallelism_expert_parallel_degree = 1;
        const double plain = predict_adapters(&setup, preset, LORA_BASE_BF16, false, mode).memory,
                     coded = predict_adapters(&setup, preset, LORA_BASE_NF4, false, mode).memory;
        expect_share((coded - plain) * setup.speeds.of[RATE_COPY],
                     32 * each * (2 + full) * (attention + up + down), 1e-6);
        /* Shared experts are expanded in every round that is queued, and their activations are made
         * again in any case. */
        setup.options.parallelism_data_parallel_shard_degree = RANKS;
        setup.options.parallelism_expert_parallel_degree = RANKS;
        for (int host = 0; host < 2; host++) {
            setup.options.comm_expert_exchange =
                host ? EXPERT_EXCHANGE_HOST : EXPERT_EXCHANGE_DEVICE;
            const double bf16 =
                             predict_adapters(&setup, preset, LORA_BASE_BF16, false, mode).memory,
                         nf4_ = predict_adapters(&setup, preset, LORA_BASE_NF4, false, mode).memory;
            const double experts = ((2 + full) * (up + down) + up) / RANKS * (host ? 1 : ROUNDS);
            expect_share((nf4_ - bf16) * setup.speeds.of[RATE_COPY],
                         32 / RANKS * each * ((2 + full) * attention + experts), 1e-6);
        }
    }
    close_setting(&setup);
}

/* Whether the text that is printed has these words. */
static bool prints(const setting *setup, const cost *price, const char *words)
{
    char *text = NULL;
    size_t size;
    layout degrees;
    assert_ok(layout_of(&setup->options, NULL, &degrees));
    FILE *to = open_memstream(&text, &size);
    assert_non_null(to);
    cost_print(price, &degrees, to);
    assert_int_equal(fclose(to), 0);
    const bool found = strstr(text, words) != NULL;
    free(text);
    return found;
}

/* Adapters' own products are a part of the step, and of its useful work. */
static void test_cost__adapters_are_a_part_of_the_step(void **state)
{
    (void)state;
    setting setup;
    training_share share;
    open_setting(&setup, "qwen3-vl-30b-a3b");
    for (int mode = AC_NONE; mode <= AC_FULL; mode += AC_FULL - AC_NONE) {
        const cost price =
            predict_adapters(&setup, "qwen3-vl-30b-a3b", LORA_BASE_BF16, false, mode);
        expect_share(price.step,
                     price.dense + price.experts + price.attention + price.vision_attention +
                         price.adapters + price.memory + price.update,
                     1e-9);
        /* Narrow products wait for memory: they take longer than at the rate of products. */
        assert_true(price.adapters * setup.speeds.of[RATE_DENSE] > 5.0 * price.adapter_flops);
        groups_share(setup.registry, &setup.dims, &share);
        expect_share((double)price.adapter_flops, (double)price.flops.text_linear * share.adapters,
                     1e-6);
        assert_true(prints(&setup, &price, "\n  adapters       "));
        assert_true(price.recompute > 0.1 * price.adapters); /* x A was not kept */
    }
    assert_false(prints(&setup, &(cost){.step = 1}, "adapters"));
    close_setting(&setup);
}

/* Rows with lengths of their own (DoRA). */
static void test_cost__lengths_take_a_product_and_norms(void **state)
{
    (void)state;
    static const char preset[] = "qwen3-vl-2b";
    const double micros = 32, tokens = micros * 8192, act = 2;
    setting setup;
    open_setting(&setup, preset);
    const text_dims *text = &setup.dims.text;
    const double elements = attention_elements(text);
    const double outputs =
        (double)(text->layers *
                 (text->hidden + (text->heads + 2 * text->kv_heads) * text->head_dim));
    for (int mode = AC_NONE; mode <= AC_FULL; mode += AC_FULL - AC_NONE) {
        const cost lora = predict_adapters(&setup, preset, LORA_BASE_BF16, false, mode),
                   dora = predict_adapters(&setup, preset, LORA_BASE_BF16, true, mode);
        const double passes = mode == AC_FULL ? 3 : 2; /* backward makes z again, full once more */
        expect_share((dora.dense - lora.dense) * setup.speeds.of[RATE_DENSE], 2 * tokens * elements,
                     1e-6);
        /* So are the products of the adapter. */
        expect_share((double)(dora.recomputed - lora.recomputed),
                     2 * tokens * elements + (double)lora.adapter_flops, 1e-9);
        expect_share((dora.memory - lora.memory) * setup.speeds.of[RATE_COPY],
                     passes * micros * act * elements +
                         ((passes - 1) * 2 + 3) * tokens * act * outputs,
                     1e-6);
        assert_int_equal(dora.flops.training, lora.flops.training);
        assert_true(dora.recompute > lora.recompute && dora.step > lora.step * 1.05);
    }
    close_setting(&setup);
}

/* The table in trainer/ops/kernels.md, and 4 bytes of sum_squares before it. */
static void test_cost__an_update_moves_the_bytes_of_its_states(void **state)
{
    (void)state;
    const struct {
        int states, master;
        double bytes;
    } kinds[] = {
        {STATES_FLOAT32, MASTER_FLOAT32, 34},
        {STATES_FLOAT32, MASTER_BF16, 28},
        {STATES_INT8, MASTER_FLOAT32, 22 + 16.0 / 256},
        {STATES_INT8, MASTER_BF16, 16 + 16.0 / 256},
    };
    setting setup;
    open_setting(&setup, "qwen3-vl-30b-a3b");
    setup.speeds.of[RATE_COPY] = 4.3e12;
    double seconds = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        setup.options.optimizer_states = kinds[i].states;
        setup.options.training_master = kinds[i].master;
        seconds = predict(&setup, AC_FULL).update;
        expect_share(seconds, (double)setup.registry->total * kinds[i].bytes / 4.3e12, 1e-9);
    }
    assert_true(setup.registry->total > 31e9);
    assert_true(seconds < 0.12); /* what one card may spend on it in a step */
    close_setting(&setup);
}

/* Whose kernels do attention's backward pass depends on the shape and on training.deterministic. */
static void test_cost__attention_goes_at_the_rate_of_its_kernels(void **state)
{
    (void)state;
    setting setup;
    open_setting(&setup, "qwen3-vl-30b-a3b");
    cost price = predict(&setup, AC_NONE);
    assert_int_equal(price.text_backward, RATE_ATTENTION_BACKWARD);
    assert_int_equal(price.vision_backward, RATE_VISION_ATTENTION_BACKWARD);
    setup.options.training_deterministic = false;
    cost other = predict(&setup, AC_NONE);
    assert_int_equal(other.text_backward, RATE_ATTENTION_ANY_ORDER);
    assert_int_equal(other.vision_backward, RATE_VISION_ATTENTION_ANY_ORDER);
    expect_share(other.step, price.other_step, 1e-12);
    expect_share(price.step, other.other_step, 1e-12);
    expect_share(price.vision_attention - other.vision_attention,
                 2.5 * (double)price.flops.vision_attention *
                     (1 / setup.speeds.of[RATE_VISION_ATTENTION_BACKWARD] -
                      1 / setup.speeds.of[RATE_VISION_ATTENTION_ANY_ORDER]),
                 1e-9);
    /* Prefixes, sequences that ranks share, and what the options say are ours. */
    setup.options.data_group = GROUP_SHARED_PREFIX;
    price = predict(&setup, AC_NONE);
    assert_int_equal(price.text_backward, RATE_OWN_ATTENTION);
    assert_int_equal(price.vision_backward, RATE_VISION_ATTENTION_ANY_ORDER);
    setup.options.data_group = GROUP_NONE;
    setup.options.parallelism_context_parallel_degree = 2;
    assert_int_equal(predict(&setup, AC_NONE).text_backward, RATE_OWN_ATTENTION);
    setup.options.parallelism_context_parallel_degree = 1;
    /* So is everything on a GPU that cuDNN is not used on, and the experts' kernel is portable. */
    assert_false(predict(&setup, AC_NONE).untimed_experts);
    setup.speeds.sm = 80;
    price = predict(&setup, AC_NONE);
    assert_int_equal(price.text_backward, RATE_OWN_ATTENTION);
    assert_int_equal(price.vision_backward, RATE_OWN_VISION_ATTENTION);
    assert_true(price.untimed_experts);
    /* A file of the user's, from such a card, has the portable kernel's own rate. */
    setup.speeds.from[RATE_EXPERTS] = NULL;
    assert_false(predict(&setup, AC_NONE).untimed_experts);
    setup.speeds.sm = 90;
    setup.options.training_experts = EXPERTS_PORTABLE;
    assert_true(predict(&setup, AC_NONE).untimed_experts);
    setup.options.training_experts = EXPERTS_AUTO;
    assert_false(predict(&setup, AC_NONE).untimed_experts);
    setup.options.training_attention = ATTENTION_PORTABLE;
    price = predict(&setup, AC_NONE);
    assert_int_equal(price.text_backward, RATE_OWN_ATTENTION);
    assert_int_equal(price.vision_backward, RATE_OWN_VISION_ATTENTION);
    expect_share(price.vision_attention,
                 3.5 * (double)price.flops.vision_attention /
                     setup.speeds.of[RATE_OWN_VISION_ATTENTION],
                 1e-9);
    expect_share(price.step, price.other_step, 0);
    close_setting(&setup);
}

/* Rates in TFLOP/s and TB/s that bench ops has measured on an H200, and seconds that bench step has
 * projected there for 48 layers: rows of one document, everything recomputed, optimiser over 8
 * ranks. In the first of these runs the backward pass was our own kernels'. */
typedef struct card_run {
    double dense, experts, forward, backward, any_order, copy;
    bool deterministic;
    double projected;
} card_run;
static const card_run card_runs[] = {
    {640.868, 584.641, 560.34, 174.51, 481.497, 4.2645, true, 6.6842},
    {665.748, 596.144, 562.023, 384.99, 481.497, 4.2373, true, 4.6642},
    {665.748, 596.144, 562.023, 384.99, 481.497, 4.2373, false, 4.3224},
};

static void set_card(setting *setup, const card_run *run)
{
    setup->speeds.of[RATE_DENSE] = run->dense * 1e12;
    setup->speeds.of[RATE_EXPERTS] = run->experts * 1e12;
    setup->speeds.of[RATE_ATTENTION] = run->forward * 1e12;
    setup->speeds.of[RATE_ATTENTION_BACKWARD] = run->backward * 1e12;
    setup->speeds.of[RATE_ATTENTION_ANY_ORDER] = run->any_order * 1e12;
    setup->speeds.of[RATE_COPY] = run->copy * 1e12;
    setup->options.training_deterministic = run->deterministic;
}

static void test_cost__is_what_steps_on_a_card_took(void **state)
{
    (void)state;
    const double within = 0.05;
    setting setup;
    cost price[3];
    open_setting(&setup, "qwen3-vl-30b-a3b");
    setup.options.data_format = DATA_TEXT;
    setup.options.freeze_pattern = "vision,merger";
    setup.options.training_seq_len = 12288;
    setup.options.training_local_batch_size = 4;
    setup.options.parallelism_data_parallel_shard_degree = 8;
    assert_ok(groups_apply(&setup.options, setup.registry));
    for (int i = 0; i < 3; i++) {
        set_card(&setup, &card_runs[i]);
        price[i] = predict(&setup, AC_FULL);
        expect_share(price[i].step, card_runs[i].projected, within);
    }
    assert_true(prints(&setup, &price[1],
                       "; giving the same bits in every run costs 6.5 % of the step, which "
                       "takes 4468.0 ms with training.deterministic false"));
    assert_true(prints(&setup, &price[2],
                       "; with training.deterministic true the step takes 4777.2 "
                       "ms, 6.9 % more"));
    /* The shipped rates are those of such a card. */
    setup.speeds = rates_h200();
    for (int i = 1; i < 3; i++) {
        setup.options.training_deterministic = card_runs[i].deterministic;
        expect_share(predict(&setup, AC_FULL).step, price[i].step, 0.005);
    }
    /* Nothing is said where it does not matter. */
    setup.speeds.of[RATE_ATTENTION_BACKWARD] = setup.speeds.of[RATE_ATTENTION_ANY_ORDER] * 0.95;
    const cost even = predict(&setup, AC_FULL);
    assert_false(prints(&setup, &even, "deterministic"));
    close_setting(&setup);
}

/* VQAv2's questions share a picture, and with shared_prefix all that comes before the question. */
static void test_cost__questions_that_share_a_picture(void **state)
{
    (void)state;
    const double questions = 443757.0 / 82783.0;
    setting setup;
    open_setting(&setup, "qwen3-vl-30b-a3b");
    const cost apart = predict(&setup, AC_NONE);
    expect_share(apart.pairs_per_s * apart.step, 32 * 26, 1e-9);
    expect_share(apart.saving, 1, 1e-9);
    setup.options.data_group = GROUP_SHARED_IMAGE;
    const cost image = predict(&setup, AC_NONE);
    expect_share(image.pairs_per_s * image.step, 32 * 8192 / 313.0, 1e-9);
    expect_share((double)image.flops.vision_blocks,
                 (double)apart.flops.vision_blocks * 8192 / 313 / 26 / questions, 1e-9);
    setup.options.data_group = GROUP_SHARED_PREFIX;
    const cost prefix = predict(&setup, AC_NONE);
    expect_share(prefix.pairs_per_s * prefix.step,
                 32 * 8192 / ((313 - 14 + 14 * questions) / questions), 1e-9);
    /* What is computed for a question is that of its own tokens and a part of the prefix. */
    expect_share(prefix.saving,
                 (double)apart.flops.forward / apart.pairs_per_s / apart.step /
                     ((double)prefix.flops.forward / prefix.pairs_per_s / prefix.step),
                 1e-9);
    expect_share(apart.pair_flops / prefix.pair_flops, prefix.saving, 0.01);
    assert_true(image.saving > 1.2 && prefix.saving > 3 * image.saving);
    assert_false(prefix.unknown_shares);
    assert_int_equal(prefix.epoch_pairs, 443757);
    expect_share(prefix.epoch / prefix.step, 443757 / (prefix.pairs_per_s * prefix.step), 1e-9);
    assert_true(prints(&setup, &prefix, " steps for its 443757 training questions\n"));
    assert_true(prints(&setup, &prefix, " 1.87 TFLOP each, 4.81 times fewer than with data.group"));
    setup.options.data_group = GROUP_CONVERSATION; /* a sample is all questions on a picture */
    assert_int_equal(predict(&setup, AC_NONE).epoch_pairs, 0);
    setup.options.data_group = GROUP_SHARED_PREFIX;
    setup.options.data_format =
        DATA_CONVERSATIONS; /* how many share a picture, only the daemon knows */
    const cost other = predict(&setup, AC_NONE);
    expect_share(other.pairs_per_s, apart.pairs_per_s, 1e-9);
    assert_true(other.unknown_shares);
    assert_int_equal(other.epoch_pairs, 0);
    assert_false(prints(&setup, &other, "an epoch of VQAv2"));
    close_setting(&setup);
}

/* With one sample in a row, only its own tokens and its own picture are computed. */
static void test_cost__rows_without_packing(void **state)
{
    (void)state;
    setting setup;
    open_setting(&setup, "qwen3-vl-30b-a3b");
    setup.options.data_pack = false;
    cost price = predict(&setup, AC_NONE);
    assert_int_equal(price.row.seq_len, 313);
    assert_int_equal(row_kind_images(&price.row), 1);
    expect_share(price.tokens_per_s * price.step, 32 * 313, 1e-9);
    setup.options.data_pack = true;
    cost packed = predict(&setup, AC_NONE);
    /* A full row holds 26 such samples and leaves 54 tokens. */
    expect_share(price.memory, packed.memory / (8192 / 313), 0.01);
    expect_share(price.mfu * price.step, packed.mfu * packed.step / (8192 / 313), 0.01);
    close_setting(&setup);
}

static void test_cost__far_groups_take_the_network(void **state)
{
    (void)state;
    setting setup;
    open_setting(&setup, "qwen3-vl-30b-a3b");
    setup.options.parallelism_data_parallel_shard_degree = 8;
    setup.options.parallelism_data_parallel_replicate_degree = 2;
    cost price = predict(&setup, AC_NONE);
    assert_false(price.traffic[TRAFFIC_GATHER].between_nodes);
    assert_true(price.traffic[TRAFFIC_REPLICATE].between_nodes);
    setup.options.parallelism_data_parallel_shard_degree = 16;
    setup.options.parallelism_data_parallel_replicate_degree = 1;
    assert_true(predict(&setup, AC_NONE).traffic[TRAFFIC_GATHER].between_nodes);
    close_setting(&setup);
}

/* What goes round a ring enters a node once and can use all adapters of the node; a rank that is
 * alone on its node uses only its own. */
static void test_cost__adapters_of_a_node_share_a_ring(void **state)
{
    (void)state;
    setting setup;
    open_setting(&setup, "qwen3-30b-a3b");
    setup.speeds.of[RATE_LINK] = 300e9;
    setup.speeds.of[RATE_NETWORK] = 20e9;
    setup.options.parallelism_data_parallel_shard_degree = 16;
    cost price = predict(&setup, AC_NONE);
    expect_share(price.traffic[TRAFFIC_GATHER].seconds,
                 (double)price.traffic[TRAFFIC_GATHER].bytes / 160e9, 1e-9);
    expect_share(price.traffic[TRAFFIC_REDUCE].seconds,
                 (double)price.traffic[TRAFFIC_REDUCE].bytes / 160e9, 1e-9);
    setup.speeds.of[RATE_NETWORK] = 50e9; /* now the links within the node are slower */
    price = predict(&setup, AC_NONE);
    expect_share(price.traffic[TRAFFIC_GATHER].seconds,
                 (double)price.traffic[TRAFFIC_GATHER].bytes / 300e9, 1e-9);
    setup.speeds.of[RATE_NETWORK] = 20e9;
    setup.options.parallelism_data_parallel_shard_degree = 8;
    setup.options.parallelism_data_parallel_replicate_degree = 2;
    price = predict(&setup, AC_NONE);
    expect_share(price.traffic[TRAFFIC_GATHER].seconds,
                 (double)price.traffic[TRAFFIC_GATHER].bytes / 300e9, 1e-9);
    expect_share(price.traffic[TRAFFIC_REPLICATE].seconds,
                 (double)price.traffic[TRAFFIC_REPLICATE].bytes / 20e9, 1e-9);
    close_setting(&setup);
}

/* Tokens travel through each rank's own adapter. A rank's experts are sharded over ranks of
 * different nodes, while the rest of a layer is sharded over all ranks. */
static void test_cost__experts_cross_by_their_own_adapter(void **state)
{
    (void)state;
    setting setup;
    open_setting(&setup, "qwen3-30b-a3b");
    setup.speeds.of[RATE_LINK] = 300e9;
    setup.speeds.of[RATE_NETWORK] = 20e9;
    setup.options.parallelism_data_parallel_replicate_degree = 1;
    setup.options.parallelism_data_parallel_shard_degree = 16;
    setup.options.parallelism_expert_parallel_degree = 16;
    cost price = predict(&setup, AC_NONE);
    expect_share(price.traffic[TRAFFIC_EXPERT].seconds,
                 (double)price.traffic[TRAFFIC_EXPERT].bytes * 8 / 15 / 20e9, 1e-9);
    setup.options.parallelism_expert_parallel_degree = 8;
    price = predict(&setup, AC_NONE);
    assert_false(price.traffic[TRAFFIC_EXPERT].between_nodes);
    expect_share(price.traffic[TRAFFIC_EXPERT].seconds,
                 (double)price.traffic[TRAFFIC_EXPERT].bytes / 300e9, 1e-9);
    /* The experts of 48 layers in two pieces, one on each node; bf16 before forward and before
     * backward, except for the last layer; 2 micro-steps. */
    const double experts = 2.0 * (2 * 48 - 1) * 128 * 3 * 2048 * 768 / 8 / 2 * 2;
    const traffic *gather = &price.traffic[TRAFFIC_GATHER];
    expect_share(gather->seconds, experts / 20e9 + ((double)gather->bytes - experts) / 160e9, 1e-6);
    close_setting(&setup);
}

static void test_cost__a_short_part_is_not_called_nothing(void **state)
{
    (void)state;
    setting setup;
    layout degrees;
    char *text = NULL;
    size_t size;
    open_setting(&setup, "qwen3-30b-a3b");
    cost price = predict(&setup, AC_NONE);
    assert_ok(layout_of(&setup.options, NULL, &degrees));
    price.update = 0.00004;
    price.exposed = 0.00006;
    price.bubble = 0;
    FILE *to = open_memstream(&text, &size);
    cost_print(&price, &degrees, to);
    fclose(to);
    assert_non_null(strstr(text, "  optimiser                        <0.1 ms   0.0 %\n"));
    assert_non_null(strstr(text, "  between ranks, not hidden         0.1 ms   0.0 %\n"));
    assert_non_null(strstr(text, "  pipeline bubble                   0.0 ms   0.0 %\n"));
    free(text);
    close_setting(&setup);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cost__one_rank_has_no_traffic),
        cmocka_unit_test(test_cost__sharded_weights_cross_once_per_pass),
        cmocka_unit_test(test_cost__every_dimension_has_its_traffic),
        cmocka_unit_test(test_cost__moments_on_the_host_take_the_link),
        cmocka_unit_test(test_cost__frozen_weights_on_the_host_come_for_each_pass),
        cmocka_unit_test(test_cost__work_is_divided_by_rates),
        cmocka_unit_test(test_cost__codes_are_expanded_for_each_product),
        cmocka_unit_test(test_cost__adapters_are_a_part_of_the_step),
        cmocka_unit_test(test_cost__lengths_take_a_product_and_norms),
        cmocka_unit_test(test_cost__an_update_moves_the_bytes_of_its_states),
        cmocka_unit_test(test_cost__attention_goes_at_the_rate_of_its_kernels),
        cmocka_unit_test(test_cost__is_what_steps_on_a_card_took),
        cmocka_unit_test(test_cost__questions_that_share_a_picture),
        cmocka_unit_test(test_cost__rows_without_packing),
        cmocka_unit_test(test_cost__a_short_part_is_not_called_nothing),
        cmocka_unit_test(test_cost__far_groups_take_the_network),
        cmocka_unit_test(test_cost__adapters_of_a_node_share_a_ring),
        cmocka_unit_test(test_cost__experts_cross_by_their_own_adapter),
    };
    return cmocka_run_group_tests_name("cost", tests, NULL, NULL) + run_rates_tests() +
           run_recompute_tests() + run_sweep_tests();
}
