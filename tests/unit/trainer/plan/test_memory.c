/* SPDX-License-Identifier: Apache-2.0 */
/* test_memory.c: the memory plan: what each region of a layout takes, and which smaller change is
 * suggested where the layout does not fit the device. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/trainer/plan/memory_tests.h"
#include "tests/dry_run/shapes.h"
#include "trainer/model/exchange/exchange.h"
#include "trainer/ops/open.h"
#include "trainer/plan/layout_plan.h"
#include "trainer/plan/memory.h"
#include "trainer/plan/memory_search.h"
#include "trainer/plan/plan_print.h"
#include "trainer/plan/recompute_plan.h"
#include "trainer/run/session_memory.h"

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

/* A device without storage that stands in for a GPU is planned for as that GPU, to the byte. */
static void test_memory__a_stand_in_is_planned_as_what_it_claims(void **state)
{
    (void)state;
    static const char *const names[] = {"l40s", "h100", "h200", "b200", "80000000000"};
    model_dims dims;
    assert_ok(dims_preset("debug", &dims));
    small setup = small_layout(&dims);
    int64_t context[2] = {0};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        plan_device named, opened;
        memory_plan first, second;
        device *shapes;
        assert_ok(plan_device_named(names[i], &named));
        assert_ok(shapes_device_open(&named, &shapes));
        assert_ok(plan_device_opened(shapes, &opened, NULL));
        device_close(&shapes);
        assert_true((int64_t)named.memory == (int64_t)opened.memory);
        assert_true((int64_t)named.usable == (int64_t)opened.usable);
        assert_true(named.cudnn == opened.cudnn && named.cudnn == (i > 0));
        assert_ok(
            memory_plan_make(&setup.options, &setup.rank, &(memory_shapes){0}, &named, &first));
        assert_ok(
            memory_plan_make(&setup.options, &setup.rank, &(memory_shapes){0}, &opened, &second));
        assert_memory_equal(&first, &second, sizeof first);
        context[i == 3] = first.gpu.context;
    }
    assert_true(context[1] - context[0] > 43 << 20); /* a B200 has more multiprocessors */
}

/* The short table has at most six lines and ends with the total in its own unit; the full one
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
        for (int full = 0; full < 2; full++) {
            int lines = 0;
            FILE *to = open_memstream(&text, &size);
            memory_plan_print(&planned, &degrees, &on, full, to);
            fclose(to);
            for (size_t at = 0; at < size; at++)
                lines += text[at] == '\n';
            assert_non_null(strstr(text, memory_bytes_text(planned.total, total)));
            snprintf(bytes, sizeof bytes, " %lld bytes ", (long long)planned.total);
            assert_true((strstr(text, bytes) != NULL) == (full == 1));
            assert_true(full ? lines > 9 : lines >= 4 && lines <= 6);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory__regions_are_counted),
        cmocka_unit_test(test_memory__moments_rest_on_the_host),
        cmocka_unit_test(test_memory__windows_are_in_the_plan),
        cmocka_unit_test(test_memory__offers_the_smallest_change),
        cmocka_unit_test(test_memory__auto_decides_for_the_device),
        cmocka_unit_test(test_memory__a_stand_in_is_planned_as_what_it_claims),
        cmocka_unit_test(test_memory__tables_are_short_unless_asked),
        cmocka_unit_test(test_memory__patches_are_whole_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) + run_plan_device_tests() +
           run_gpu_memory_tests() + run_layout_plan_tests();
}
