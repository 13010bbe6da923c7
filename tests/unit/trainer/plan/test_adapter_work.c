/* SPDX-License-Identifier: Apache-2.0 */
/* test_adapter_work.c: what the plan says of adapters' work, compared with the calls that a model
 * with the shapes of a published one makes on a device of shapes. */
#include "tests/harness.h"

#include "tests/unit/trainer/model/fixture.h"
#include "tests/unit/trainer/plan/plan_setting.h"
#include "tests/dry_run/shapes.h"
#include "trainer/ops/open.h"
#include "trainer/ops/table.h"
#include "trainer/optim/groups.h"
#include "trainer/plan/matrix_work.h"

enum { TOKENS = 64, ACT = 2, ACC = 4, RANK = 24 /* no other dimension of the model is */ };
static const char attention[] = "q_proj,k_proj,v_proj,o_proj";
static const char everything[] =
    "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,gate,gate_up_proj,down_proj";

/* What the calls of adapters have come to. */
static struct {
    double flops, bytes;
    int64_t slots;
} counted;

static bool is_narrow(int64_t first, int64_t second, int64_t third)
{
    return first == RANK || second == RANK || third == RANK;
}

static status count_gemm(stream *queue, const gemm_args *args)
{
    (void)queue;
    if (!is_narrow(args->m, args->n, args->k))
        return ST_OK;
    const double result = args->c_acc ? ACC : ACT, passed = args->accumulate ? 2 : 1;
    counted.flops += 2.0 * (double)(args->m * args->n * args->k);
    counted.bytes += (double)(ACT * args->k * (args->m + args->n)) +
                     passed * result * (double)(args->m * args->n);
    return ST_OK;
}

static status count_grouped(stream *queue, const grouped_gemm_args *args)
{
    (void)queue;
    if (!is_narrow(args->k, args->n, 0))
        return ST_OK;
    const double weights = args->mode == GROUPED_WGRAD ? 2 * ACC : ACT;
    counted.flops += 2.0 * (double)(args->rows_cap * args->k * args->n);
    counted.bytes += (double)(ACT * args->rows_cap * (args->k + args->n)) +
                     weights * (double)(args->experts * args->k * args->n);
    return ST_OK;
}

/* Nothing else scales. */
static status count_scale(stream *queue, const scale_args *args)
{
    (void)queue;
    counted.bytes += 2.0 * ACT * (double)args->n;
    return ST_OK;
}

/* Nothing else adds as many rows. */
static status count_add(stream *queue, const add_args *args)
{
    (void)queue;
    counted.bytes += args->n > counted.slots * 512 ? 3.0 * ACT * (double)args->n : 0;
    return ST_OK;
}

/* Runs a forward and a backward pass on this row. */
static void count_calls(const model_dims *dims, params *registry, const recompute *again,
                        const row *packed)
{
    device *dev;
    stream *queue;
    model *net;
    stager *staging;
    device_batch *batch;
    loss_sums sums;
    model_options options = {.cap = {.tokens = TOKENS, .docs = 4, .targets = TOKENS},
                             .training = true,
                             .recomputed = {.text = *again}};
    ops_table ops = ops_shapes;
    ops.gemm = count_gemm;
    ops.grouped_gemm = count_grouped;
    ops.scale = count_scale;
    ops.add = count_add;
    assert_ok(shapes_device_open(NULL, &dev));
    assert_ok(dev->backend->stream_new(dev, &queue));
    queue->ops = &ops;
    assert_ok(params_alloc(registry, queue, true));
    model_options_freeze(&options, registry);
    assert_ok(model_new(queue, dims, registry, &options, &net));
    assert_ok(stager_new(queue, dims, &options.cap, &staging));
    assert_ok(dev->backend->alloc(dev, sizeof(double), (void **)&sums.loss));
    assert_ok(dev->backend->alloc(dev, sizeof(double), (void **)&sums.weight));
    assert_ok(dev->backend->alloc(dev, sizeof(double), &sums.aux));
    assert_ok(stage_rows(staging, queue, packed, 1, &batch));
    counted.flops = counted.bytes = 0;
    counted.slots = TOKENS * dims->text.top_k;
    assert_ok(model_forward_backward(net, queue, batch, &sums));
    stager_free(&staging, queue);
    model_free(&net, queue);
    params_release(registry, queue);
    dev->backend->release(dev, sums.loss);
    dev->backend->release(dev, sums.weight);
    dev->backend->release(dev, sums.aux);
    dev->backend->stream_free(&queue);
    device_close(&dev);
}

/* A case: which matrices have adapters, what is frozen of these, whether they have lengths. */
typedef struct adapted {
    const char *targets, *frozen;
    bool dora;
} adapted;

static void expect_counted(const model_dims *dims, const adapted *wanted, unsigned what,
                           const row *packed)
{
    char name[] = "trainer", *argv[] = {name, NULL};
    int argc = 1;
    conf options;
    layout degrees;
    params *registry;
    training_share share;
    rates speeds = rates_h200();
    const recompute again = {.what = what};
    assert_ok(conf_load(&options, &argc, argv));
    options.lora_rank = RANK;
    options.lora_targets = wanted->targets;
    options.freeze_pattern = wanted->frozen;
    options.lora_dora = wanted->dora;
    options.parallelism_world_size = 1;
    assert_ok(layout_of(&options, NULL, &degrees));
    degrees.accumulation = 2; /* what is counted once is done twice */
    assert_ok(params_new(dims, &registry));
    assert_ok(groups_apply(&options, registry));
    groups_share(registry, dims, &share);
    count_calls(dims, registry, &again, packed);
    speeds.of[RATE_COPY] = 1; /* slow, so that bytes are seconds */
    const adapter_work work = adapter_work_of(&options, &degrees, dims, registry, &again,
                                              share.text_dgrad, 2 * TOKENS, &speeds);
    const double operations = work.forward.flops + work.backward.flops + work.again.flops;
    assert_true(counted.flops > 0);
    expect_share(operations, 2 * counted.flops, 1e-12);
    expect_share(work.forward.bytes + work.backward.bytes + work.again.bytes, 2 * counted.bytes,
                 1e-12);
    expect_share(work.forward.seconds + work.backward.seconds + work.again.seconds,
                 2 * counted.bytes, 1e-12);
    speeds.of[RATE_COPY] = 1e300;
    speeds.of[RATE_DENSE] = speeds.of[RATE_EXPERTS] = 1;
    const adapter_work slow = adapter_work_of(&options, &degrees, dims, registry, &again,
                                              share.text_dgrad, 2 * TOKENS, &speeds);
    expect_share(slow.forward.seconds + slow.backward.seconds + slow.again.seconds, operations,
                 1e-12);
    params_free(&registry);
    conf_done(&options);
}

/* Four layers of Qwen3-30B-A3B, of which one has a dense MLP. */
static model_dims shapes_of(void)
{
    model_dims dims;
    assert_ok(dims_preset("qwen3-30b-a3b", &dims));
    dims.text.layers = 4;
    dims.text.dense_layers[0] = 1;
    dims.text.n_dense_layers = 1;
    return dims;
}

static void test_adapter_work__is_that_of_a_models_calls(void **state)
{
    (void)state;
    const model_dims dims = shapes_of();
    model_dims debug;
    fixture small;
    assert_ok(dims_preset("debug", &debug));
    fixture_open(&small, &debug);
    const row packed = fixture_row(&small, &(document){"60", 11}, 1, false);
    const adapted settings[] = {
        {.targets = attention, .frozen = ""},
        {.targets = everything, .frozen = ""},
        {.targets = everything, .frozen = "*q_proj.lora_A*,*down_proj.lora_B"},
        {.targets = "model.layers.[23].self_attn.q_proj", .frozen = ""},
        {.targets = attention, .frozen = "", .dora = true},
    };
    const unsigned what[] = {0, RECOMPUTE_ALL, RECOMPUTE_CHEAP | RECOMPUTE_QKV,
                             RECOMPUTE_CHEAP | RECOMPUTE_FC1};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        for (size_t j = 0; j < sizeof what / sizeof *what; j++)
            expect_counted(&dims, &settings[i], what[j], &packed);
    fixture_close(&small);
}

/* A rank that shares a layer has the narrow side whole and its part of the wide one; experts are
 * divided too. */
static void test_adapter_work__is_divided_among_ranks(void **state)
{
    (void)state;
    enum { RANKS = 4, STEP = 1 << 20 };
    const model_dims dims = shapes_of();
    char name[] = "trainer", *argv[] = {name, NULL};
    int argc = 1;
    conf options;
    params *registry;
    const rates speeds = rates_h200();
    const recompute none = {0};
    assert_ok(conf_load(&options, &argc, argv));
    options.lora_rank = RANK;
    options.lora_targets = "q_proj,gate_up_proj";
    assert_ok(params_new(&dims, &registry));
    assert_ok(groups_apply(&options, registry));
    layout alone = {.world = 1,
                    .replicate = 1,
                    .shard = 1,
                    .context = 1,
                    .tensor = 1,
                    .pipeline = 1,
                    .expert = 1,
                    .expert_tensor = 1,
                    .accumulation = 1};
    const double shrinks = 2.0 * STEP * RANK * (double)(dims.text.hidden * 4);
    const double expands = 2.0 * STEP * RANK * (double)(dims.text.heads * dims.text.head_dim * 4);
    const double experts = 2.0 * STEP * RANK * (double)dims.text.top_k * 3 *
                           (double)(dims.text.hidden + 2 * dims.text.expert_width);
    adapter_work work = adapter_work_of(&options, &alone, &dims, registry, &none, 1, STEP, &speeds);
    expect_share(work.forward.flops, shrinks + expands + experts, 1e-12);
    expect_share(work.backward.flops, 2 * work.forward.flops, 1e-12);
    layout shared = alone;
    shared.world = shared.tensor = shared.expert = RANKS;
    work = adapter_work_of(&options, &shared, &dims, registry, &none, 1, STEP, &speeds);
    expect_share(work.forward.flops, shrinks + (expands + experts) / RANKS, 1e-12);
    params_free(&registry);
    conf_done(&options);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adapter_work__is_that_of_a_models_calls),
        cmocka_unit_test(test_adapter_work__is_divided_among_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
