/* SPDX-License-Identifier: Apache-2.0 */
/* test_model_bf16.c: a whole small model, forward and backward, on the CUDA kernels (bf16
 * activations and weights, float sums and gradients) against the CPU in float. It runs in the
 * harness and, as test_model_cuda, on a GPU (bf16_device.h).
 *
 * In the harness, matrix products, which the GPU leaves to a library, are the CPU's, rounded to
 * bf16. The CPU's choices of experts replace the kernels' own, since one other expert is more than
 * a rounding error; choices that differ are counted. */
#include "tests/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf/conf.h"
#include "tests/simt/bf16_device.h"
#include "tests/simt/product_bf16.h"
#include "tests/unit/trainer/model/fixture.h"
#include "trainer/model/dims/convert.h"
#include "trainer/ops/table.h"

enum { CALLS_MAX = 64 };

/* Tolerances relative to the norm of a gradient and to the loss. A rounding to bf16 is off by up to
 * 1/256, and some hundred roundings of random sign follow each other; in practice the worst tensor
 * is off by half the tolerance. A wrong factor, index or type is off by the order of 1. */
static const double GRADIENT_TOLERANCE = 0.06, LOSS_TOLERANCE = 0.001;

/* ---- choices of experts, by call ---- */

static struct {
    int32_t *expert[CALLS_MAX];
    int64_t slots[CALLS_MAX];
    int count, at;
    int64_t all, flipped;
} routes;

static const ops_table *below; /* the table that does the work */

static status route_and_note(stream *queue, const route_fwd_args *args)
{
    TRY(below->route_fwd(queue, args));
    int64_t slots = args->tokens * args->top_k;
    assert_true(routes.count < CALLS_MAX);
    routes.expert[routes.count] = malloc((size_t)slots * sizeof(int32_t));
    assert_non_null(routes.expert[routes.count]);
    memcpy(routes.expert[routes.count], args->expert, (size_t)slots * sizeof(int32_t));
    routes.slots[routes.count++] = slots;
    return ST_OK;
}

static void *fetch_array(stream *queue, const void *src, size_t bytes)
{
    void *out = malloc(bytes ? bytes : 1);
    assert_non_null(out);
    assert_ok(queue->dev->backend->to_host(queue, out, src, bytes));
    assert_ok(queue->dev->backend->wait(queue));
    return out;
}

static void send_array(stream *queue, void *dst, const void *src, size_t bytes)
{
    assert_ok(queue->dev->backend->to_device(queue, dst, src, bytes));
    assert_ok(queue->dev->backend->wait(queue));
}

/* Computes one token's weights for these experts from its probabilities. */
static void weigh_experts(float *weight, const float *probs, const int32_t *expert, int64_t chosen,
                          bool norm)
{
    float sum = 0;
    for (int64_t i = 0; i < chosen; i++) {
        weight[i] = expert[i] < 0 ? 0 : probs[expert[i]];
        sum += weight[i];
    }
    for (int64_t i = 0; norm && i < chosen; i++)
        weight[i] = expert[i] < 0 ? weight[i] : weight[i] / sum;
}

/* Routes by the noted choices, with weights from this run's own probabilities. */
static status route_as_noted(stream *queue, const route_fwd_args *args)
{
    TRY(below->route_fwd(queue, args));
    int64_t k = args->top_k, slots = args->tokens * k;
    const int32_t *noted = routes.expert[routes.at];
    assert_int_equal(routes.slots[routes.at++], slots);
    int32_t *own = fetch_array(queue, args->expert, (size_t)slots * sizeof *own);
    float *probs =
        fetch_array(queue, args->probs, (size_t)(args->tokens * args->experts) * sizeof *probs);
    float *weight = calloc((size_t)slots + 1, sizeof *weight);
    int32_t *count = calloc((size_t)args->experts, sizeof *count);
    assert_true(weight && count);
    for (int64_t token = 0; token < args->tokens; token++)
        weigh_experts(weight + token * k, probs + token * args->experts, noted + token * k, k,
                      args->norm_topk);
    for (int64_t i = 0; i < slots; i++) {
        bool kept = false;
        for (int64_t j = i / k * k; j < (i / k + 1) * k; j++)
            kept |= own[j] == noted[i];
        routes.all++;
        routes.flipped += !kept;
        if (noted[i] >= 0)
            count[noted[i]]++;
    }
    send_array(queue, args->expert, noted, (size_t)slots * sizeof *noted);
    send_array(queue, args->weight, weight, (size_t)slots * sizeof *weight);
    send_array(queue, args->count, count, (size_t)args->experts * sizeof *count);
    free(own);
    free(probs);
    free(weight);
    free(count);
    return ST_OK;
}

static void forget_routes(void)
{
    for (int i = 0; i < routes.count; i++)
        free(routes.expert[i]);
    memset(&routes, 0, sizeof routes);
}

/* ---- two models with the same values ---- */

static ops_table noting, merged;

static void open_bf16(fixture *setup, fixture *from)
{
    *setup = (fixture){.dims = from->dims};
    assert_ok(bf16_device_open(&setup->dev));
    assert_ok(setup->dev->backend->stream_new(setup->dev, &setup->queue));
    assert_ok(params_new(&setup->dims, &setup->registry));
    assert_ok(params_alloc(setup->registry, setup->queue, true));
    for (int64_t i = 0; i < setup->registry->count; i++) {
        const param *weight = &setup->registry->list[i];
        double *values = malloc((size_t)weight->count * sizeof *values);
        uint16_t *rounded = malloc((size_t)weight->count * sizeof *rounded);
        assert_ok(
            params_read(from->registry->list[i].value, from->queue, 0, weight->count, values));
        convert_from_double(rounded, DT_BF16, values, weight->count);
        convert_to_double(values, rounded, DT_BF16, weight->count);
        assert_ok(params_write(weight, setup->queue, 0, weight->count, values));
        assert_ok(params_write(&from->registry->list[i], from->queue, 0, weight->count, values));
        free(values);
        free(rounded);
    }
    void *sums[3];
    for (int i = 0; i < 3; i++)
        assert_ok(setup->dev->backend->alloc(setup->dev, sizeof(double), &sums[i]));
    setup->sums = (loss_sums){sums[0], sums[1], sums[2]};
    arena_init(&setup->rows, 0);
}

static double difference(const double *want, const double *got, int64_t count)
{
    double off = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        off += (want[i] - got[i]) * (want[i] - got[i]);
        size += want[i] * want[i];
    }
    return size > 0 ? sqrt(off / size) : sqrt(off);
}

static void compare_gradients(fixture *setup, fixture *made, double *out_worst)
{
    for (int64_t i = 0; i < setup->registry->count; i++) {
        const param *weight = &setup->registry->list[i];
        double *want = fixture_grad(setup, weight),
               *got = fixture_grad(made, &made->registry->list[i]);
        double off = difference(want, got, weight->count);
        if (off > *out_worst) {
            print_message("%-72s %.4f\n", weight->name, off);
            *out_worst = off;
        }
        free(want);
        free(got);
    }
}

static void compare_flavour(const char *flavour)
{
    fixture setup, made;
    model_dims dims;
    assert_ok(dims_preset(flavour, &dims));
    fixture_open(&setup, &dims);
    open_bf16(&made, &setup);
    product_bf16_by(setup.queue);
    merged = *made.queue->ops;
    if (bf16_device_lacks_products)
        merged.gemm = product_bf16;
    const char *missing = ops_first_missing(&merged);
    if (missing)
        fail_msg("the device has no op %s", missing);
    const ops_table *plain = setup.queue->ops;
    row rows[2];
    rows[0] = fixture_row(&setup, debug_documents, 3, true);
    rows[1] = fixture_row(&setup, (document[]){{"6 1x4x4 5", 61}}, 1, false);
    model_options options = {.training = true, .router_aux_coef = 0.01};
    batch_caps_for(rows, 2, 16, 16, &options.cap);
    fixture_model(&setup, &options, true);
    fixture_model(&made, &options, true);

    noting = *plain;
    noting.route_fwd = route_and_note;
    below = plain;
    setup.queue->ops = &noting;
    double want = fixture_forward_backward(&setup, rows, 2);
    setup.queue->ops = plain; /* the other model's products run on this stream */
    const ops_table *kernels = made.queue->ops;
    static ops_table own;
    own = merged;
    below = &own;
    merged.route_fwd = route_as_noted;
    made.queue->ops = &merged;
    double got = fixture_forward_backward(&made, rows, 2), worst = 0;
    print_message("%s: loss %.6f, in bf16 %.6f; %lld of %lld choices of experts were others\n",
                  flavour, want, got, (long long)routes.flipped, (long long)routes.all);
    assert_true(fabs(got - want) <= LOSS_TOLERANCE * fabs(want));
    compare_gradients(&setup, &made, &worst);
    assert_true(worst <= GRADIENT_TOLERANCE);
    assert_true(routes.flipped * 10 < routes.all);
    forget_routes();
    made.queue->ops = kernels;
    fixture_close(&made);
    fixture_close(&setup);
}

static void test_model__bf16_against_float(void **state)
{
    (void)state;
    device *there = NULL;
    status st = bf16_device_open(&there);
    if (st == ST_UNAVAILABLE)
        HARNESS_SKIP(status_text());
    assert_ok(st);
    device_close(&there);
    for (const char *const *flavour = bf16_device_flavours; *flavour; flavour++)
        compare_flavour(*flavour);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model__bf16_against_float),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
