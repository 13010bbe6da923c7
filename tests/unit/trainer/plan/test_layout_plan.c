/* SPDX-License-Identifier: Apache-2.0 */
/* test_layout_plan.c: the plan of every rank of a layout: sharded, of a pipeline, with adapters.
 * Part of test_memory. */
#include "tests/harness.h"

#include <string.h>

#include "tests/unit/trainer/plan/memory_tests.h"
#include "tests/dry_run/shapes.h"
#include "trainer/model/params/lora_params.h"
#include "trainer/ops/open.h"
#include "trainer/plan/layout_plan.h"

enum { LORA_RANK = 4 };

static conf pipeline_of(int64_t ranks, int64_t stages, const char *points)
{
    return (conf){.model_path = "",
                  .comm_expert_exchange = EXPERT_EXCHANGE_HOST,
                  .parallelism_data_parallel_replicate_degree = 1,
                  .parallelism_pipeline_parallel_degree = stages,
                  .parallelism_pipeline_parallel_split_points = points,
                  .parallelism_world_size = ranks,
                  .parallelism_data_parallel_shard_degree = -1,
                  .parallelism_tensor_parallel_degree = 1,
                  .parallelism_context_parallel_degree = 1,
                  .parallelism_expert_parallel_degree = 1,
                  .parallelism_expert_tensor_parallel_degree = 1,
                  .training_local_batch_size = 1,
                  .training_global_batch_size = 16,
                  .training_seq_len = 256,
                  .feed_replay = ""};
}

/* The state of the published model over eight cards: 16 bytes a value in fp32, 2 in bf16. */
static void test_layout__state_is_sharded(void **state)
{
    (void)state;
    model_dims dims;
    params *registry;
    layout degrees;
    plan_device h200;
    memory_plan none, full;
    const recomputes all = {{.what = RECOMPUTE_ALL}, {.what = RECOMPUTE_ALL}};
    conf options = pipeline_of(8, 1, "");
    options.training_global_batch_size = 8;
    options.training_seq_len = 4096;
    assert_ok(dims_preset("qwen3-vl-30b-a3b", &dims));
    assert_ok(params_new(&dims, &registry));
    assert_ok(layout_of(&options, NULL, &degrees));
    assert_ok(plan_device_named("h200", &h200));
    const plan_input in = {
        .conf = &options, .layout = &degrees, .dims = &dims, .params = registry, .device = &h200};
    assert_ok(layout_plan_make(&in, 1, &(recomputes){0}, &none));
    assert_ok(layout_plan_make(&in, 1, &all, &full));
    /* A little more, since the pieces of spans are padded. */
    assert_in_range(none.weights, 31070754032 * 2 / 8, 31070754032 * 2 / 8 * 1.0001);
    assert_int_equal(none.parameters + none.gradients + none.moments, none.weights / 2 * 16);
    assert_true(full.activations < none.activations / 4);
    assert_int_equal(none.total, none.weights / 2 * 18 + none.gathered + none.activations +
                                     none.staging + memory_gpu_total(&none.gpu));
    assert_true(none.gpu.context > 0 && none.gpu.graphs > 0);
    assert_true(full.gpu.graphs > none.gpu.graphs); /* recomputation makes more calls */
    params_free(&registry);
}

static memory_plan plan_adapters(const char *preset, const char *targets, int64_t *out_total)
{
    model_dims dims;
    params *registry;
    layout degrees;
    plan_device h200;
    memory_plan planned;
    const recomputes all = {{.what = RECOMPUTE_ALL}, {.what = RECOMPUTE_ALL}};
    conf options = pipeline_of(1, 1, "");
    options.training_global_batch_size = 1;
    options.training_seq_len = 8192;
    options.lora_rank = 16;
    assert_ok(dims_preset(preset, &dims));
    assert_ok(params_new(&dims, &registry));
    *out_total = registry->total;
    assert_ok(lora_add(registry, (lora_kind){.rank = 16, .alpha = 16}, targets));
    assert_ok(layout_of(&options, NULL, &degrees));
    assert_ok(plan_device_named("h200", &h200));
    const plan_input in = {
        .conf = &options, .layout = &degrees, .dims = &dims, .params = registry, .device = &h200};
    assert_ok(layout_plan_make(&in, 1, &all, &planned));
    params_free(&registry);
    return planned;
}

/* Adapters of rank 16 on one card, a row of 8,192 tokens with pictures. */
static void test_layout__frozen_parameters_take_their_bf16(void **state)
{
    (void)state;
    const double gib = 1073741824.0;
    const char attention[] = "q_proj,k_proj,v_proj,o_proj";
    int64_t count;
    memory_plan planned = plan_adapters("qwen3-vl-30b-a3b", attention, &count);
    assert_true((double)planned.total <= 67 * gib);
    planned = plan_adapters("qwen3-vl-30b-a3b",
                            "q_proj,k_proj,v_proj,o_proj,gate_up_proj,down_proj", &count);
    assert_true((double)planned.total <= 78 * gib);
    planned = plan_adapters("qwen3-vl-4b", attention, &count);
    assert_true((double)planned.total <= 17 * gib);
    const int64_t state_bytes =
        planned.parameters + planned.weights + planned.gradients + planned.moments;
    assert_true((double)state_bytes <= 1.03 * 2 * (double)count);
}

/* The memory that a rank takes, measured by opening its part of the model on a device of shapes, as
 * a run opens it. */
static int64_t taken_by(const conf *options, const layout *degrees, const model_dims *dims,
                        const char *adapted, int rank)
{
    params *registry;
    device *dev;
    stream *queue;
    model *net;
    mesh at;
    assert_ok(shapes_device_open(NULL, &dev));
    assert_ok(dev->backend->stream_new(dev, &queue));
    assert_ok(params_new(dims, &registry));
    if (adapted)
        assert_ok(lora_add(registry, (lora_kind){.rank = LORA_RANK, .alpha = 16}, adapted));
    mesh_sketch(degrees, rank, &at);
    if (degrees->world > 1) {
        assert_ok(params_cut(registry, dims, degrees, at.place));
        params_share(registry, &at, true);
    }
    const int64_t before = (int64_t)shapes_bytes(dev);
    assert_ok(params_alloc(registry, queue, true));
    model_options how = {.cap = memory_caps(1, options->training_seq_len,
                                            dims->vision.depth ? 4 * options->training_seq_len : 0),
                         .mesh = degrees->world > 1 ? &at : NULL,
                         .training = true};
    model_options_freeze(&how, registry);
    assert_ok(model_new(queue, dims, registry, &how, &net));
    const int64_t bytes = (int64_t)shapes_bytes(dev) - before;
    model_free(&net, queue);
    params_release(registry, queue);
    params_free(&registry);
    dev->backend->stream_free(&queue);
    device_close(&dev);
    return bytes;
}

/* Every rank of a pipeline takes what the plan says of its stage, also if most of it is frozen, and
 * the plan of the layout is that of the largest. */
static void test_layout__stages_take_what_is_planned(void **state)
{
    (void)state;
    const struct {
        int64_t world, stages, tensor, expert;
        const char *points, *adapted;
    } cases[] = {{4, 4, 1, 1, "", NULL},
                 {8, 2, 2, 2, "layers.5", NULL},
                 {4, 2, 1, 2, "layers.3", "q_proj,down_proj"},
                 {6, 3, 1, 1, "layers.3 layers.4", NULL},
                 {1, 1, 1, 1, "", NULL},
                 {1, 1, 1, 1, "", "q_proj,down_proj"}};
    const recomputes none = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        conf options = pipeline_of(cases[i].world, cases[i].stages, cases[i].points);
        options.parallelism_tensor_parallel_degree = cases[i].tensor;
        options.parallelism_expert_parallel_degree = cases[i].expert;
        model_dims dims;
        params *registry;
        layout degrees;
        plan_device h200;
        memory_plan one, most = {0}, whole;
        assert_ok(dims_preset("debug", &dims));
        dims.text.layers = 12;
        assert_ok(params_new(&dims, &registry));
        if (cases[i].adapted)
            assert_ok(
                lora_add(registry, (lora_kind){.rank = LORA_RANK, .alpha = 16}, cases[i].adapted));
        assert_ok(layout_of(&options, NULL, &degrees));
        assert_ok(plan_device_named("h200", &h200));
        const plan_input in = {.conf = &options,
                               .layout = &degrees,
                               .dims = &dims,
                               .params = registry,
                               .device = &h200};
        assert_ok(layout_plan_make(&in, 1, &none, &whole));
        assert_ok(stage_plan(&options, &dims, registry, &degrees));
        const int each = (int)(degrees.world / degrees.pipeline);
        for (int stage = 0; stage < degrees.pipeline; stage++) {
            assert_ok(layout_plan_stage(&in, 1, &none, stage, &one));
            assert_int_equal(one.stage, stage);
            for (int rank = stage * each; rank < (stage + 1) * each; rank++)
                assert_int_equal(one.parameters + one.gradients + one.moments + one.weights +
                                     one.gathered + one.activations,
                                 taken_by(&options, &degrees, &dims, cases[i].adapted, rank));
            if (one.total > most.total)
                most = one;
        }
        assert_memory_equal(&whole, &most, sizeof most);
        params_free(&registry);
    }
}

/* The largest stage decides, whether it is large by its layers or by the micro-batches that it
 * holds. */
static void test_layout__the_largest_stage_decides(void **state)
{
    (void)state;
    const struct {
        const char *points;
        int largest;
    } cases[] = {{"layers.3 layers.4 layers.5", 3},
                 {"layers.3 layers.40 layers.44", 1},
                 {"layers.40 layers.42 layers.44", 0}};
    model_dims dims;
    params *registry;
    assert_ok(dims_preset("qwen3-vl-30b-a3b", &dims));
    assert_ok(params_new(&dims, &registry));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        conf options = pipeline_of(8, 4, cases[i].points);
        layout degrees;
        plan_device h200;
        memory_plan planned;
        assert_ok(layout_of(&options, NULL, &degrees));
        assert_ok(plan_device_named("h200", &h200));
        const plan_input in = {.conf = &options,
                               .layout = &degrees,
                               .dims = &dims,
                               .params = registry,
                               .device = &h200};
        assert_ok(layout_plan_make(&in, 1, &(recomputes){0}, &planned));
        assert_int_equal(planned.stage, cases[i].largest);
        /* 36 or more of the 48 layers, over two ranks */
        assert_true((double)planned.weights > 0.7 * 31.07e9 * 2 / 2);
    }
    params_free(&registry);
}

int run_layout_plan_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout__state_is_sharded),
        cmocka_unit_test(test_layout__frozen_parameters_take_their_bf16),
        cmocka_unit_test(test_layout__stages_take_what_is_planned),
        cmocka_unit_test(test_layout__the_largest_stage_decides),
    };
    return cmocka_run_group_tests_name("layout plan", tests, NULL, NULL);
}
