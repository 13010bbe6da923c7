/* SPDX-License-Identifier: Apache-2.0 */
/* test_gpu_memory.c: what a GPU takes beside the arrays of a run: workspace, graphs, libraries and
 * communicators. Part of test_memory. */
#include "tests/harness.h"

#include <string.h>

#include "tests/unit/trainer/plan/memory_tests.h"
#include "trainer/plan/memory.h"

/* Attention by cuDNN wherever it takes a shape, the same bits every time. */
static const attention_use all = {.text = true, .vision = true, .deterministic = true};

static int64_t workspace_with(const batch_caps *caps, int count, const attention_use *use,
                              const model_options *options)
{
    model_dims dims;
    memory_gpu gpu;
    const memory_steps steps = {.caps = caps, .count = count, .buffers = 2};
    assert_ok(dims_preset("qwen3-vl-30b-a3b", &dims));
    memory_gpu_plan(&dims, options, &steps, use, 132, &gpu);
    return gpu.workspace;
}

static int64_t workspace(const batch_caps *caps, int count)
{
    return workspace_with(caps, count, &all, &(model_options){.training = true});
}

/* Memory of NCCL and of values exchanged by hosts: nothing for one rank; else a part for each
 * communicator and for each rank that messages come from or go to. */
static void test_gpu__ranks_take_communicators_and_peers(void **state)
{
    (void)state;
    const int64_t mib = 1 << 20, communicator = 688 * mib, peer = 32 * 14 * mib;
    const struct {
        int64_t shard, expert, pipeline, bytes;
    } cases[] = {{1, 1, 1, 0},
                 {8, 1, 1, mib + communicator},
                 {8, 8, 1, mib + communicator + 7 * peer},
                 {4, 1, 2, mib + 3 * communicator + peer}};
    model_dims dims;
    const batch_caps caps = {.tokens = 64};
    const memory_steps steps = {.caps = &caps, .count = 1, .buffers = 2};
    assert_ok(dims_preset("qwen3-vl-30b-a3b", &dims));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mesh ranks;
        memory_gpu gpu;
        const layout degrees = {.replicate = 1,
                                .shard = cases[i].shard,
                                .context = 1,
                                .tensor = 1,
                                .pipeline = cases[i].pipeline,
                                .expert = cases[i].expert,
                                .expert_tensor = 1,
                                .world = cases[i].shard * cases[i].pipeline,
                                .accumulation = 2};
        mesh_sketch(&degrees, 0, &ranks);
        memory_gpu_plan(&dims, &(model_options){.training = true, .mesh = &ranks}, &steps, &all,
                        132, &gpu);
        assert_int_equal(gpu.ranks, cases[i].bytes);
        assert_int_equal(memory_gpu_total(&gpu),
                         gpu.context + gpu.libraries + gpu.workspace + gpu.graphs + gpu.ranks);
    }
}

/* One H200 took 102 MiB for the libraries' kernels and at most 1,330 bytes a node of a captured
 * graph (tests/bench/results/gpu, memory). The plan has a margin, but not twice as much. */
static void test_gpu__plans_little_more_than_was_measured(void **state)
{
    (void)state;
    const double libraries = 102.0 * 1048576, node = 1330.0;
    model_dims dims;
    memory_gpu gpu;
    const batch_caps caps = {.tokens = 64};
    const memory_steps steps = {.caps = &caps, .count = 1, .buffers = 2};
    assert_ok(dims_preset("qwen3-vl-30b-a3b", &dims));
    memory_gpu_plan(&dims, &(model_options){.training = true}, &steps, &all, 132, &gpu);
    assert_true((double)gpu.libraries > 1.1 * libraries && (double)gpu.libraries < 2 * libraries);
    assert_true(gpu.nodes > 0 && (double)gpu.graphs > 1.1 * node * (double)gpu.nodes);
    assert_true((double)gpu.graphs < 2 * node * (double)gpu.nodes);
}

/* A step is captured once for each bucket, buffer and kind of batch that can come in it. */
static void test_gpu__graphs_of_every_kind_of_batch(void **state)
{
    (void)state;
    const batch_caps stills = {
        .tokens = 4096, .patches = 4096, .items = 8, .frames = 8, .frame = 512};
    const batch_caps clips = {
        .tokens = 4096, .patches = 4096, .items = 8, .frames = 64, .frame = 512};
    const batch_caps both[] = {stills, clips};
    const model_options options = {.training = true};
    model_dims dims;
    memory_gpu one, more;
    assert_ok(dims_preset("qwen3-vl-30b-a3b", &dims));
    memory_gpu_plan(&dims, &options, &(memory_steps){&stills, 1, 1}, &all, 132, &one);
    assert_true(one.nodes > 0);
    memory_gpu_plan(&dims, &options, &(memory_steps){&stills, 1, 2}, &all, 132, &more);
    assert_in_range(more.nodes, 2 * one.nodes, 2 * one.nodes + 1);
    memory_gpu_plan(&dims, &options, &(memory_steps){&clips, 1, 1}, &all, 132, &more);
    assert_in_range(more.nodes, 2 * one.nodes, 2 * one.nodes + 1);
    memory_gpu_plan(&dims, &options, &(memory_steps){both, 2, 2}, &all, 132, &more);
    assert_in_range(more.nodes, 6 * one.nodes, 6 * one.nodes + 5);
    /* Attention of four rows of 12,288 tokens goes backward in 4 groups of heads over 4 runs. */
    const batch_caps whole = {.tokens = 4 * 12288, .docs = 4, .longest = 12288};
    const batch_caps packed = {.tokens = 4 * 12288, .docs = 48, .longest = 1024};
    memory_gpu_plan(&dims, &options, &(memory_steps){&packed, 1, 1}, &all, 132, &one);
    memory_gpu_plan(&dims, &options, &(memory_steps){&whole, 1, 1}, &all, 132, &more);
    assert_in_range(more.nodes - one.nodes, 48 * 15 * 6 - 1, 48 * 15 * 6 + 1);
}

/* The workspace is what attention_cudnn.c asks for. One row of 12,288 tokens has a dp of 0.3 GB a
 * head, so 8 of 32 heads run at once (16 would take 4.8 GB); gradients of keys and values are kept
 * for each query head. */
static void test_gpu__workspace_is_that_of_attention(void **state)
{
    (void)state;
    const batch_caps whole_row = {.tokens = 12288, .docs = 1, .longest = 12288};
    const int64_t dp = (int64_t)2 * 12288 * 12288 * 8, whole = (int64_t)4 * 12288 * 32 * 128;
    assert_in_range(workspace(&whole_row, 1) - dp - whole, 0, 1 << 17);
    /* Four of them take as much, since each is a separate run, and four times the gradients. */
    const batch_caps rows = {.tokens = 4 * 12288, .docs = 4, .longest = 12288};
    assert_in_range(workspace(&rows, 1) - dp - 4 * whole, 0, 1 << 17);
    /* Where documents may be thousands or a single long one, our own kernels run, and the products
     * decide. */
    const batch_caps loose = {.tokens = 12288, .docs = 3073};
    assert_int_equal(workspace(&loose, 1), 32 << 20);
    /* Of several buckets the largest counts; frames of width 72 have sums of their own. */
    const batch_caps frames = {
        .tokens = 64, .docs = 1, .longest = 64, .patches = 38400, .frames = 32, .frame = 1200};
    const int64_t eye = (int64_t)2 * 32 * 1280 * 1280 * 16 + (int64_t)4 * 32 * 16 * 1200;
    assert_in_range(workspace(&frames, 1) - eye, 0, 1 << 17);
    /* A group of two of a frame's 16 heads is not aligned to 16 bytes, so its log-sums are
     * copied. */
    const batch_caps large = {
        .tokens = 64, .docs = 1, .longest = 64, .patches = 65536, .frames = 4, .frame = 16384};
    const int64_t two = (int64_t)2 * 4 * 16384 * 16384 * 2 + (int64_t)4 * 4 * 2 * 16384;
    assert_in_range(workspace(&large, 1) - two - (int64_t)4 * 4 * 65536, 0, 1 << 17);
    const batch_caps both[] = {whole_row, frames};
    assert_int_equal(workspace(both, 2), workspace(&whole_row, 1));
}

/* Where cuDNN does not run there is no scratch of its own, and tensor ranks have a part of the
 * heads each. */
static void test_gpu__workspace_is_of_kernels_that_run(void **state)
{
    (void)state;
    const int64_t products = 32 << 20;
    const batch_caps row = {
        .tokens = 8192, .docs = 1, .longest = 8192, .patches = 32768, .frames = 28, .frame = 1200};
    const model_options training = {.training = true};
    const int64_t frames = (int64_t)2 * 28 * 1280 * 1280 * 16 + (int64_t)4 * 28 * 16 * 1200;
    assert_true(workspace(&row, 1) > (int64_t)4 << 30);
    /* No cuDNN, or training.attention portable. */
    assert_int_equal(workspace_with(&row, 1, &(attention_use){.deterministic = true}, &training),
                     products);
    /* Context ranks have keys of others; frames still go by cuDNN, unless the tower is frozen. */
    const attention_use vision = {.vision = true, .deterministic = true};
    assert_in_range(workspace_with(&row, 1, &vision, &training) - frames, 0, 1 << 17);
    const model_options frozen = {.training = true, .tower_frozen = true};
    assert_int_equal(workspace_with(&row, 1, &vision, &frozen), products);
    assert_int_equal(workspace_with(&row, 1, &all, &(model_options){0}), products);
    /* In any order there is no dp, but sums of dq beside gradients of keys and values. */
    const attention_use any_order = {.text = true};
    const int64_t gradient = (int64_t)4 * 8192 * 32 * 128;
    assert_in_range(workspace_with(&row, 1, &any_order, &training) - 2 * gradient, 0, 1 << 17);
    const attention_use any_frames = {.vision = true};
    const int64_t row_sums = (int64_t)4 * 28 * 16 * 1200;
    assert_in_range(workspace_with(&row, 1, &any_frames, &training) - 73 * row_sums, 0, 1 << 17);

    mesh ranks;
    const layout halves = {.replicate = 1,
                           .shard = 1,
                           .context = 1,
                           .tensor = 4,
                           .pipeline = 1,
                           .expert = 1,
                           .expert_tensor = 1,
                           .world = 4,
                           .accumulation = 1};
    const model_options shared = {.training = true, .tower_frozen = true, .mesh = &ranks};
    mesh_sketch(&halves, 0, &ranks);
    const int64_t dp = (int64_t)2 * 8192 * 8192 * 8; /* of 8 of 32 heads */
    assert_in_range(workspace_with(&row, 1, &all, &shared) - dp - gradient / 4, 0, 1 << 17);
}

/* The options and the device say where cuDNN may run. */
static void test_gpu__use_of_cudnn_follows_options_and_device(void **state)
{
    (void)state;
    char name[] = "trainer", *argv[] = {name, NULL};
    int argc = 1;
    conf options;
    layout degrees = {.context = 1};
    assert_ok(conf_load(&options, &argc, argv));
    attention_use use = attention_use_of(&options, true, &degrees);
    assert_true(use.text && use.vision && use.deterministic);
    use = attention_use_of(&options, false, &degrees);
    assert_true(!use.text && !use.vision);
    degrees.context = 2;
    use = attention_use_of(&options, true, &degrees);
    assert_true(!use.text && use.vision);
    options.training_attention = ATTENTION_PORTABLE;
    options.training_deterministic = false;
    use = attention_use_of(&options, true, &degrees);
    assert_true(!use.text && !use.vision && !use.deterministic);
    conf_done(&options);
}

int run_gpu_memory_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpu__plans_little_more_than_was_measured),
        cmocka_unit_test(test_gpu__graphs_of_every_kind_of_batch),
        cmocka_unit_test(test_gpu__workspace_is_that_of_attention),
        cmocka_unit_test(test_gpu__workspace_is_of_kernels_that_run),
        cmocka_unit_test(test_gpu__use_of_cudnn_follows_options_and_device),
        cmocka_unit_test(test_gpu__ranks_take_communicators_and_peers),
    };
    return cmocka_run_group_tests_name("gpu memory", tests, NULL, NULL);
}
