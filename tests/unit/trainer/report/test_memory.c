/* test_memory.c: the memory plan: what each region of a layout takes, and which smaller change is
 * suggested where the layout does not fit the device. */
#include "tests/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/device/shapes.h"
#include "trainer/model/exchange.h"
#include "trainer/model/lora_params.h"
#include "trainer/ops/open.h"
#include "trainer/plan/layout_plan.h"
#include "trainer/plan/memory.h"
#include "trainer/plan/memory_change.h"
#include "trainer/plan/plan_print.h"
#include "trainer/plan/recompute_plan.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/run/session_memory.h"

enum { LORA_RANK = 4 };

/* The layout of a rank of 1,000 parameters, whatever the dimensions say. */
typedef struct small {
    plan_device cpu;
    memory_options options;
    memory_rank rank;
} small;

static small small_layout(const model_dims *dims)
{
    return (small){.cpu = {.name = "CPU", .sizes = &backend_cpu, .sharers = 1},
                   .options = {.rows = 6, .seq_len = 256, .patch_budget = 1024, .training = true},
                   .rank = {.dims = dims, .size = {.acts = 4000, .grads = 4000, .moments = 4000}}};
}

static memory_plan plan_small(const small *setup)
{
    memory_plan planned;
    assert_ok(memory_plan_make(&setup->options, &setup->rank, &(memory_shapes){0}, &setup->cpu,
                               &planned));
    return planned;
}

static void test_memory__regions_are_counted(void **state)
{
    (void)state;
    model_dims dims;
    assert_ok(dims_preset("debug", &dims));
    small setup = small_layout(&dims);
    const memory_plan planned = plan_small(&setup);
    assert_int_equal(planned.parameters, 4000);
    assert_int_equal(planned.gradients, 4000);
    assert_int_equal(planned.moments, 8000);
    assert_int_equal(planned.weights, 0); /* the CPU computes with the values themselves */
    assert_true(planned.staging >= (int64_t)6 * 1024 * (768 + 1536));
    assert_int_equal(memory_gpu_total(&planned.gpu), 0); /* there are no regions of a GPU */
    /* Two micro-batches of rows, and one that is being built. */
    assert_true(planned.built + planned.received >= planned.staging + (int64_t)12 * 1024 * 768);
    assert_int_equal(planned.total, 16000 + planned.activations + planned.staging + planned.built +
                                        planned.received);
    setup.options.training = false;
    setup.rank.size = (params_sizes){.acts = 4000};
    const memory_plan eval = plan_small(&setup);
    assert_int_equal(eval.gradients + eval.moments, 0);
    assert_true(eval.activations < planned.activations);
}

/* With memory.host the device has buffers of two units for the moments, and the host the moments
 * themselves: on the CPU in the same total, beside a GPU apart from it. What the host has no room
 * for is refused before anything is taken. */
static void test_memory__moments_rest_on_the_host(void **state)
{
    (void)state;
    model_dims dims;
    conf options = {.memory_limit = 0.5,
                    .training_local_batch_size = 1,
                    .training_seq_len = 64,
                    .feed_replay = "",
                    .model_path = "qwen3-vl-235b-a22b",
                    .checkpoint_memory_folder = ""};
    assert_ok(dims_preset("debug", &dims));
    small setup = small_layout(&dims);
    const memory_plan before = plan_small(&setup);
    setup.rank.size.moments_on_host = true;
    setup.rank.size.turn[0] = 512;
    setup.rank.size.turn[1] = 256;
    const memory_plan cpu = plan_small(&setup);
    assert_true(memory_resting(&before) == 0 && cpu.resting_moments == 8000 &&
                cpu.moments == 2 * (512 + 256));
    assert_int_equal(cpu.total, before.total + cpu.moments);
    setup.cpu.sizes = &backend_shapes;
    const memory_plan gpu = plan_small(&setup);
    setup.rank.size.moments_on_host = false;
    assert_int_equal(plan_small(&setup).total, gpu.total + 8000 - gpu.moments);

    session run = {.conf = &options,
                   .use = SESSION_TRAIN,
                   .planned = {.name = "GPU",
                               .sizes = &backend_shapes,
                               .usable = 1e15,
                               .sharers = 1,
                               .host_ranks = 1}};
    assert_ok(device_open(BACKEND_CPU, &(device_options){.threads = 1}, &run.device));
    assert_ok(dims_preset("qwen3-vl-235b-a22b", &run.dims));
    assert_ok(params_new(&run.dims, &run.params));
    mesh_alone(&run.mesh);
    assert_ok(session_memory_check(&run));
    run.params->moments_on_host = true;
    assert_fails(ST_CONFIG, session_memory_check(&run),
                 "memory.host: what rests on the host for the 1 rank of this machine takes 1755.9");
    params_free(&run.params);
    device_close(&run.device);
}

/* Ranks that share experts have windows; without windows the same rows lie in scratch. */
static void test_memory__windows_are_in_the_plan(void **state)
{
    (void)state;
    const layout degrees = {.replicate = 1,
                            .shard = 4,
                            .context = 1,
                            .tensor = 1,
                            .pipeline = 1,
                            .expert = 4,
                            .expert_tensor = 1,
                            .world = 4,
                            .accumulation = 1};
    model_dims dims;
    mesh at;
    assert_ok(dims_preset("debug", &dims));
    mesh_sketch(&degrees, 0, &at);
    small setup = small_layout(&dims);
    setup.rank.mesh = &at;
    const memory_plan by_host = plan_small(&setup);
    setup.options.exchange = EXCHANGE_IF_REACHED;
    const memory_plan by_device = plan_small(&setup);
    const int64_t slots = setup.options.rows * setup.options.seq_len * dims.text.top_k;
    const int64_t row_bytes = dims.text.hidden * 4;
    assert_int_equal(by_host.window, 0);
    assert_int_equal(by_device.window, exchange_window_bytes(&dims.text, &degrees, slots, 4));
    assert_true(by_device.window >= 3 * (slots * 5 / 4) * row_bytes);
    assert_int_equal(by_device.total - by_device.window - by_device.activations,
                     by_host.total - by_host.activations);
    assert_true(by_device.activations <= by_host.activations); /* scratch is shared */
    assert_true(by_device.total >= by_host.total - 8 * (slots * 5 / 4 + 1));

    conf options = {.model_path = "", .training_backend = BACKEND_CPU};
    assert_int_equal(memory_exchange_way(&options, &degrees), EXCHANGE_BY_HOST);
    options.training_backend = BACKEND_CUDA;
    assert_int_equal(memory_exchange_way(&options, &degrees), EXCHANGE_IF_REACHED);
    options.comm_engine = ENGINE_MPI;
    assert_int_equal(memory_exchange_way(&options, &degrees), EXCHANGE_BY_HOST);
    options.comm_expert_exchange = EXPERT_EXCHANGE_DEVICE;
    assert_int_equal(memory_exchange_way(&options, &degrees), EXCHANGE_BY_DEVICE);
}

/* Checks what is suggested where the device has exactly this much memory. */
static void change_for(plan_input *in, plan_device *on, int64_t bytes, const char *words)
{
    char change[CHANGE_TEXT_MAX];
    on->memory = on->usable = (double)bytes;
    assert_ok(memory_smallest_change(in, change));
    if (!strstr(change, words))
        fail_msg("\"%s\" is not in \"%s\"", words, change);
}

static int64_t total_of(const plan_input *in, int64_t rows, unsigned again)
{
    memory_plan planned;
    const recomputes recomputed = {{.what = again}, {.what = again}};
    assert_ok(layout_plan_make(in, rows, &recomputed, &planned));
    return planned.total;
}

static void test_memory__offers_the_smallest_change(void **state)
{
    (void)state;
    model_dims dims;
    params *registry;
    layout degrees;
    plan_device cpu = {.name = "CPU", .sizes = &backend_cpu, .sharers = 1};
    char name[] = "trainer", *argv[] = {name, NULL};
    int argc = 1;
    conf options;
    assert_ok(conf_load(&options, &argc, argv));
    options.training_local_batch_size = options.training_global_batch_size = 6;
    options.training_seq_len = 256;
    options.training_backend = BACKEND_CPU;
    options.memory_limit = 1;
    assert_ok(dims_preset("debug", &dims));
    assert_ok(params_new(&dims, &registry));
    assert_ok(layout_of(&options, NULL, &degrees));
    plan_input in = {
        .conf = &options, .layout = &degrees, .dims = &dims, .params = registry, .device = &cpu};

    change_for(&in, &cpu, total_of(&in, 6, 0),
               "what fits: training.local_batch_size 6, training.seq_len 256");
    change_for(&in, &cpu, total_of(&in, 6, RECOMPUTE_CHEAP),
               "what fits: activation_checkpoint.mode selective, training.local_batch_size 6, "
               "training.seq_len 256");
    change_for(&in, &cpu, total_of(&in, 6, RECOMPUTE_ALL),
               "activation_checkpoint.mode full, training.local_batch_size 6, "
               "training.seq_len 256");
    const int64_t fewer = total_of(&in, 3, RECOMPUTE_ALL);
    change_for(&in, &cpu, fewer,
               "activation_checkpoint.mode full, training.local_batch_size 3, "
               "training.seq_len 256");
    change_for(&in, &cpu, total_of(&in, 5, RECOMPUTE_ALL),
               "training.local_batch_size 3, "); /* of 6 */
    change_for(&in, &cpu, total_of(&in, 1, RECOMPUTE_ALL) * 9 / 10,
               "training.local_batch_size 1, training.seq_len ");
    change_for(&in, &cpu, 1000, "no batch of this model fits");
    /* If the suggested mode needs another option changed, that option is named too. */
    options.activation_checkpoint_save = "qkv";
    options.activation_checkpoint_mode = AC_SELECTIVE;
    in.conf = &options;
    change_for(&in, &cpu, total_of(&in, 6, RECOMPUTE_CHEAP),
               "what fits: training.local_batch_size 6, ");
    params_free(&registry);
    conf_done(&options);
}

/* `save: auto` decides by the device: an H100 recomputes what an H200 has room for, and a B200
 * keeps more. */
static void test_memory__auto_decides_for_the_device(void **state)
{
    (void)state;
    static const char *const names[] = {"h100", "h200", "b200"};
    char name[] = "trainer", *argv[] = {name, NULL}, text[RECOMPUTE_TEXT_MAX];
    int argc = 1;
    int64_t kept[3];
    conf options;
    model_dims dims;
    params *registry;
    layout degrees;
    assert_ok(conf_load(&options, &argc, argv));
    options.parallelism_world_size = options.parallelism_data_parallel_shard_degree = 16;
    options.training_seq_len = 8192;
    options.training_local_batch_size = 4;
    options.training_global_batch_size = 64;
    options.activation_checkpoint_mode = AC_SELECTIVE;
    assert_ok(dims_preset("qwen3-30b-a3b", &dims));
    assert_ok(params_new(&dims, &registry));
    assert_ok(layout_of(&options, NULL, &degrees));
    for (int i = 0; i < 3; i++) {
        plan_device on;
        recomputes recomputed;
        memory_plan planned;
        assert_ok(plan_device_named(names[i], &on));
        const plan_input in = {
            .conf = &options, .layout = &degrees, .dims = &dims, .params = registry, .device = &on};
        assert_ok(recompute_plan_of(&in, 4, &recomputed));
        assert_ok(layout_plan_make(&in, 4, &recomputed, &planned));
        print_message("%s: %s\n", names[i], recompute_plan_text(&recomputed.text, text));
        kept[i] = planned.activations;
        assert_true(layout_fits(&in, &planned));
    }
    assert_true(kept[0] < kept[1] && kept[1] < kept[2]);
    params_free(&registry);
    conf_done(&options);
}

static void test_device__is_named(void **state)
{
    (void)state;
    plan_device on;
    assert_ok(plan_device_named("h100", &on));
    assert_true(on.memory < 85e9 && !plan_device_is_cpu(&on));
    assert_ok(plan_device_named("80000000000", &on));
    assert_true(on.memory == 80e9 && on.sizes->act == DT_BF16);
    assert_ok(plan_device_named("cpu", &on));
    assert_true(plan_device_is_cpu(&on) && on.memory > 1e8);
    assert_fails(ST_USAGE, plan_device_named("v100", &on),
                 "expected a100, h100, h200, b200, cpu, or ");
    assert_fails(ST_USAGE, plan_device_named("-5", &on), "--device -5: expected ");
    assert_fails(ST_USAGE, plan_device_named("", &on), "expected a100");
}

/* What a device that is there says of itself. */
static size_t said_used, said_total, said_available;

static status say_memory(device *dev, size_t *out_used, size_t *out_total)
{
    (void)dev;
    *out_used = said_used;
    *out_total = said_total;
    return ST_OK;
}

static status say_available(device *dev, size_t *out)
{
    (void)dev;
    *out = said_available;
    return ST_OK;
}

/* What others hold is not usable, and what this process holds already is; ranks have equal parts.
 */
static void test_device__others_and_sharers_are_taken_off(void **state)
{
    (void)state;
    const backend_vtable gpu = {.memory = say_memory, .available = say_available};
    backend_vtable cpu = gpu;
    cpu.immediate = true;
    device dev = {.backend = &gpu,
                  .multiprocessors = 77,
                  .context_bytes = 500,
                  .used_at_open = 29000,
                  .description = "NVIDIA H200, sm_90"};
    plan_device on;
    plan_room room;
    char text[PLAN_DEVICE_TEXT];
    said_total = 100000;
    said_used = 30000; /* of a GPU this is everyone's */
    said_available = 70000;
    assert_ok(plan_device_opened(&dev, &on, &room));
    assert_true(on.memory == 100000 && on.usable == 71500);
    assert_true(room.own == 500 && room.grown == 1000);
    assert_int_equal(on.multiprocessors, 77); /* not those that an H200 has */
    assert_string_equal(on.name, "NVIDIA H200");
    plan_device_share(&on, 3);
    plan_device_share(&on, 3);
    assert_true(fabs(on.usable - 71500.0 / 3) < 1e-6 && on.sharers == 3 && on.memory == 100000);
    dev.backend = &cpu;
    assert_ok(plan_device_opened(&dev, &on, NULL)); /* of a CPU it is this process's */
    assert_true(on.usable == 100000 && plan_device_is_cpu(&on));
    said_available = 20000;
    assert_ok(plan_device_opened(&dev, &on, NULL));
    assert_true(on.usable == 50000);
    on.memory = 4.0 * 1073741824;
    on.usable = 3.0 * 1073741824;
    assert_string_equal(plan_device_text(&on, text), "3.0 of 4.0 GiB are free");
    plan_device_share(&on, 2);
    assert_string_equal(plan_device_text(&on, text),
                        "3.0 of 4.0 GiB are free, for 2 ranks: 1.5 GiB each");
}

/* A device without storage that stands in for a GPU is planned for as that GPU, to the byte. */
static void test_device__a_stand_in_is_planned_as_what_it_claims(void **state)
{
    (void)state;
    static const char *const names[] = {"h100", "h200", "b200", "80000000000"};
    model_dims dims;
    assert_ok(dims_preset("debug", &dims));
    small setup = small_layout(&dims);
    int64_t context[2] = {0};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        plan_device named, opened;
        memory_plan first, second;
        device *shapes;
        assert_ok(plan_device_named(names[i], &named));
        assert_ok(device_open(BACKEND_SHAPES,
                              &(device_options){.claims = plan_device_claims(&named)}, &shapes));
        assert_ok(plan_device_opened(shapes, &opened, NULL));
        device_close(&shapes);
        assert_true((int64_t)named.memory == (int64_t)opened.memory);
        assert_true((int64_t)named.usable == (int64_t)opened.usable);
        assert_ok(
            memory_plan_make(&setup.options, &setup.rank, &(memory_shapes){0}, &named, &first));
        assert_ok(
            memory_plan_make(&setup.options, &setup.rank, &(memory_shapes){0}, &opened, &second));
        assert_memory_equal(&first, &second, sizeof first);
        context[i == 2] = first.gpu.context;
    }
    assert_true(context[1] - context[0] > 43 << 20); /* a B200 has more multiprocessors */
}

/* The short table has at most six lines and ends with the total in a unit of its own; the full one
 * has every region to the byte, and these add up. */
static void test_memory__tables_are_short_unless_asked(void **state)
{
    (void)state;
    const layout degrees = {.world = 1, .pipeline = 1};
    const char *const names[] = {"cpu", "h200"};
    model_dims dims;
    assert_ok(dims_preset("debug", &dims));
    small setup = small_layout(&dims);
    for (int i = 0; i < 2; i++) {
        plan_device on;
        memory_plan planned;
        memory_region region[MEMORY_REGIONS];
        char *text = NULL, total[MEMORY_BYTES_TEXT], bytes[64];
        size_t size;
        assert_ok(plan_device_named(names[i], &on));
        assert_ok(
            memory_plan_make(&setup.options, &setup.rank, &(memory_shapes){0}, &on, &planned));
        int64_t sum = 0;
        for (int line = 0, count = memory_plan_regions(&planned, &on, region); line < count; line++)
            sum += i == 1 && region[line].part == MEMORY_HOST ? 0 : region[line].bytes;
        assert_int_equal(sum, planned.total);
        for (int table = TABLE_SHORT; table <= TABLE_FULL; table++) {
            int lines = 0;
            FILE *to = open_memstream(&text, &size);
            memory_plan_print(&planned, &degrees, &on, table, to);
            fclose(to);
            for (size_t at = 0; at < size; at++)
                lines += text[at] == '\n';
            assert_non_null(strstr(text, memory_bytes_text(planned.total, total)));
            snprintf(bytes, sizeof bytes, " %lld bytes ", (long long)planned.total);
            assert_true((strstr(text, bytes) != NULL) == (table == TABLE_FULL));
            assert_true(table == TABLE_FULL ? lines > 9 : lines >= 4 && lines <= 6);
            free(text);
        }
    }
    char text[MEMORY_BYTES_TEXT];
    assert_string_equal(memory_bytes_text(512, text), "0.5 KiB");
    assert_string_equal(memory_bytes_text((int64_t)118 << 20, text), "118.0 MiB");
    assert_string_equal(memory_bytes_text((int64_t)3 << 29, text), "1.5 GiB");
}

static void test_memory__patches_are_whole_groups(void **state)
{
    (void)state;
    batch_caps caps = memory_caps(3, 100, 401);
    assert_int_equal(caps.patches, 3 * 404);
    assert_int_equal(caps.tokens, 300);
    assert_true(caps.docs >= 3 && caps.items == 303 && caps.frames == 303);
}

static void test_layout__ranks_fit_each_other(void **state)
{
    (void)state;
    const struct {
        int64_t world, shard, tensor, context, expert, expert_tensor, local, global;
        const char *words; /* expected error; NULL: none */
        int64_t accumulation;
    } cases[] = {
        {0, -1, 1, 1, 1, 1, 1, 6, NULL, 6},
        {8, -1, 1, 1, 8, 1, 2, 32, NULL, 2},
        {8, -1, 4, 1, 2, 4, 2, 8, NULL, 2}, /* the expert ranks divide the two shards */
        {8, -1, 4, 1, 2, 1, 2, 8, "must divide 8 ranks and be a multiple of 4", 0},
        {8, 3, 1, 1, 1, 1, 1, 8, "8 ranks are not the product", 0},
        {16, -1, 2, 2, 4, 1, 1, 4, NULL, 1},
        {8, -1, 1, 1, 3, 1, 1, 8, "expert_parallel_degree 3", 0},
        {8, -1, 1, 1, 1, 1, 3, 8, "local_batch_size 3 x 8", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        conf options = {.model_path = "",
                        .parallelism_data_parallel_replicate_degree = 1,
                        .parallelism_pipeline_parallel_degree = 1,
                        .parallelism_pipeline_parallel_split_points = "",
                        .parallelism_world_size = cases[i].world,
                        .parallelism_data_parallel_shard_degree = cases[i].shard,
                        .parallelism_tensor_parallel_degree = cases[i].tensor,
                        .parallelism_context_parallel_degree = cases[i].context,
                        .parallelism_expert_parallel_degree = cases[i].expert,
                        .parallelism_expert_tensor_parallel_degree = cases[i].expert_tensor,
                        .training_local_batch_size = cases[i].local,
                        .training_global_batch_size = cases[i].global};
        layout degrees;
        if (cases[i].words) {
            assert_fails(ST_CONFIG, layout_of(&options, NULL, &degrees), cases[i].words);
            continue;
        }
        assert_ok(layout_of(&options, NULL, &degrees));
        assert_int_equal(degrees.accumulation, cases[i].accumulation);
        assert_int_equal(degrees.shard * degrees.tensor * degrees.context, degrees.world);
    }
}

static int64_t workspace(const batch_caps *caps, int count)
{
    model_dims dims;
    memory_gpu gpu;
    const memory_steps steps = {.caps = caps, .count = count, .buffers = 2};
    assert_ok(dims_preset("qwen3-vl-30b-a3b", &dims));
    memory_gpu_plan(&dims, &(model_options){.training = true}, &steps, 132, &gpu);
    return gpu.workspace;
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
        memory_gpu_plan(&dims, &(model_options){.training = true, .mesh = &ranks}, &steps, 132,
                        &gpu);
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
    memory_gpu_plan(&dims, &(model_options){.training = true}, &steps, 132, &gpu);
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
    memory_gpu_plan(&dims, &options, &(memory_steps){&stills, 1, 1}, 132, &one);
    assert_true(one.nodes > 0);
    memory_gpu_plan(&dims, &options, &(memory_steps){&stills, 1, 2}, 132, &more);
    assert_in_range(more.nodes, 2 * one.nodes, 2 * one.nodes + 1);
    memory_gpu_plan(&dims, &options, &(memory_steps){&clips, 1, 1}, 132, &more);
    assert_in_range(more.nodes, 2 * one.nodes, 2 * one.nodes + 1);
    memory_gpu_plan(&dims, &options, &(memory_steps){both, 2, 2}, 132, &more);
    assert_in_range(more.nodes, 6 * one.nodes, 6 * one.nodes + 5);
    /* Attention of four rows of 12,288 tokens goes backward in 4 groups of heads over 4 runs. */
    const batch_caps whole = {.tokens = 4 * 12288, .docs = 4, .longest = 12288};
    const batch_caps packed = {.tokens = 4 * 12288, .docs = 48, .longest = 1024};
    memory_gpu_plan(&dims, &options, &(memory_steps){&packed, 1, 1}, 132, &one);
    memory_gpu_plan(&dims, &options, &(memory_steps){&whole, 1, 1}, 132, &more);
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
    /* Four of them take as much, since each is a run of its own, and four times the gradients. */
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
    conf options = {.model_path = "",
                    .parallelism_data_parallel_replicate_degree = 1,
                    .parallelism_pipeline_parallel_degree = 1,
                    .parallelism_pipeline_parallel_split_points = "",
                    .parallelism_world_size = 8,
                    .parallelism_data_parallel_shard_degree = -1,
                    .parallelism_tensor_parallel_degree = 1,
                    .parallelism_context_parallel_degree = 1,
                    .parallelism_expert_parallel_degree = 1,
                    .parallelism_expert_tensor_parallel_degree = 1,
                    .training_local_batch_size = 1,
                    .training_global_batch_size = 8,
                    .training_seq_len = 4096,
                    .feed_replay = ""};
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
    assert_ok(device_open(BACKEND_SHAPES, &(device_options){0}, &dev));
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory__regions_are_counted),
        cmocka_unit_test(test_memory__moments_rest_on_the_host),
        cmocka_unit_test(test_memory__windows_are_in_the_plan),
        cmocka_unit_test(test_memory__offers_the_smallest_change),
        cmocka_unit_test(test_memory__auto_decides_for_the_device),
        cmocka_unit_test(test_device__is_named),
        cmocka_unit_test(test_device__others_and_sharers_are_taken_off),
        cmocka_unit_test(test_device__a_stand_in_is_planned_as_what_it_claims),
        cmocka_unit_test(test_memory__tables_are_short_unless_asked),
        cmocka_unit_test(test_memory__patches_are_whole_groups),
        cmocka_unit_test(test_gpu__plans_little_more_than_was_measured),
        cmocka_unit_test(test_gpu__graphs_of_every_kind_of_batch),
        cmocka_unit_test(test_gpu__workspace_is_that_of_attention),
        cmocka_unit_test(test_gpu__ranks_take_communicators_and_peers),
        cmocka_unit_test(test_layout__ranks_fit_each_other),
        cmocka_unit_test(test_layout__state_is_sharded),
        cmocka_unit_test(test_layout__frozen_parameters_take_their_bf16),
        cmocka_unit_test(test_layout__stages_take_what_is_planned),
        cmocka_unit_test(test_layout__the_largest_stage_decides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
