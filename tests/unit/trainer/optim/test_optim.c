/* SPDX-License-Identifier: Apache-2.0 */
/* test_optim.c: the optimiser over all parameters, compared with AdamW as a loop in double
 * (Loshchilov and Hutter 2019): bias correction, clipping, decay of matrices only, division by the
 * number of targets, skipped updates. Built twice, with the float ops and with the double ones.
 * Letters: x a value; g its gradient; m, v the two moments, as in AdamW. */
#include "tests/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "trainer/ops/open.h"
#include "trainer/optim/optim.h"

#ifdef TESSERA_REAL_F64
static const double tolerance = 1e-13;
#else
static const double tolerance = 3e-6; /* values near 1 after five updates, each off by a few ulp */
#endif

typedef struct bench {
    device *dev;
    stream *queue;
    params *registry;
    optimizer *optim;
    conf options;
    double *weight;                /* on the device */
    double **value, **m, **v, **g; /* [registry->count] the loop's state */
} bench;

static double *filled(int64_t count, double mean, double spread, const char *purpose, uint64_t seed)
{
    double *x = malloc((size_t)count * sizeof *x);
    assert_non_null(x);
    rng_key key = rng_key_make(seed, purpose);
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)(mean + spread * rng_normal(key, (uint64_t)i));
    return x;
}

static void open_bench(bench *setup, double max_norm)
{
    model_dims dims;
    *setup = (bench){0};
    assert_ok(dims_preset("debug", &dims));
    dims.text.vocab = 64; /* small, since every element is compared */
    dims.text.experts = 4;
    assert_ok(device_open(BACKEND_CPU, &(device_options){.threads = 2}, &setup->dev));
    assert_ok(setup->dev->backend->stream_new(setup->dev, &setup->queue));
    assert_ok(params_new(&dims, &setup->registry));
    assert_ok(params_alloc(setup->registry, setup->queue, true));
    assert_ok(
        setup->dev->backend->alloc(setup->dev, sizeof *setup->weight, (void **)&setup->weight));
    size_t count = (size_t)setup->registry->count;
    setup->value = calloc(count, sizeof *setup->value);
    setup->m = calloc(count, sizeof *setup->m);
    setup->v = calloc(count, sizeof *setup->v);
    setup->g = calloc(count, sizeof *setup->g);
    for (int64_t i = 0; i < setup->registry->count; i++) {
        const param *weight = &setup->registry->list[i];
        setup->value[i] = filled(weight->count, 0.5, 0.3, weight->name, 1);
        assert_ok(params_write(weight, setup->queue, 0, weight->count, setup->value[i]));
        setup->m[i] = calloc((size_t)weight->count, sizeof(double));
        setup->v[i] = calloc((size_t)weight->count, sizeof(double));
    }
    setup->options.optimizer_beta1 = 0.9;
    setup->options.optimizer_beta2 = 0.95;
    setup->options.optimizer_eps = 1e-8;
    setup->options.optimizer_weight_decay = 0.1;
    setup->options.training_max_norm = max_norm;
    assert_ok(optimizer_new(&setup->options, setup->registry, setup->queue, &setup->optim));
}

static void close_bench(bench *setup)
{
    for (int64_t i = 0; i < setup->registry->count; i++) {
        free(setup->value[i]);
        free(setup->m[i]);
        free(setup->v[i]);
        free(setup->g[i]);
    }
    free(setup->value);
    free(setup->m);
    free(setup->v);
    free(setup->g);
    optimizer_free(&setup->optim, setup->queue);
    setup->dev->backend->release(setup->dev, setup->weight);
    params_release(setup->registry, setup->queue);
    params_free(&setup->registry);
    setup->dev->backend->stream_free(&setup->queue);
    device_close(&setup->dev);
}

/* Gives both sides gradients that are sums over `weight` targets. */
static void put_gradients(bench *setup, uint64_t seed, double weight)
{
    for (int64_t i = 0; i < setup->registry->count; i++) {
        param as_value = setup->registry->list[i];
        free(setup->g[i]);
        setup->g[i] = filled(as_value.count, 0.0, weight, as_value.name, seed);
        as_value.value = as_value.own_act = as_value.grad; /* params_write writes `value` */
        assert_ok(params_write(&as_value, setup->queue, 0, as_value.count, setup->g[i]));
    }
    assert_ok(setup->dev->backend->to_device(setup->queue, setup->weight, &weight, sizeof weight));
}

/* One step of the loop. Returns the norm of the mean gradient before clipping. */
static double loop_step(bench *setup, int64_t step, double lr, double weight)
{
    double squares = 0;
    for (int64_t i = 0; i < setup->registry->count; i++)
        for (int64_t j = 0; j < setup->registry->list[i].count; j++)
            squares += pow(setup->g[i][j] / weight, 2);
    double norm = sqrt(squares), clip = 1, max = setup->options.training_max_norm;
    if (max > 0 && norm > max)
        clip = max / norm;
    for (int64_t i = 0; i < setup->registry->count; i++) {
        double decay = setup->registry->list[i].n_dims > 1 ? 0.1 : 0;
        for (int64_t j = 0; j < setup->registry->list[i].count; j++) {
            double g = setup->g[i][j] / weight * clip;
            double *m = &setup->m[i][j], *v = &setup->v[i][j], *x = &setup->value[i][j];
            *m = 0.9 * *m + 0.1 * g;
            *v = 0.95 * *v + 0.05 * g * g;
            *x -= lr * decay * *x;
            *x -= lr * (*m / (1 - pow(0.9, (double)step))) /
                  (sqrt(*v / (1 - pow(0.95, (double)step))) + 1e-8);
        }
    }
    return norm;
}

/* Compares the values on the device with those of the loop. */
static void compare_params(const bench *setup)
{
    for (int64_t i = 0; i < setup->registry->count; i++) {
        const param *weight = &setup->registry->list[i];
        double *got = malloc((size_t)weight->count * sizeof *got);
        assert_ok(params_read(weight->value, setup->queue, 0, weight->count, got));
        for (int64_t j = 0; j < weight->count; j++)
            if (!(fabs(got[j] - setup->value[i][j]) <= tolerance * (1 + fabs(setup->value[i][j]))))
                fail_msg("%s[%lld]: %.17g, the loop has %.17g", weight->name, (long long)j, got[j],
                         setup->value[i][j]);
        free(got);
    }
}

static void run_steps(double max_norm, bool clips)
{
    bench setup;
    open_bench(&setup, max_norm);
    for (int64_t step = 1; step <= 5; step++) {
        double lr = 0.01 * (double)step, weight = 3.0 * (double)step;
        put_gradients(&setup, 10 + (uint64_t)step, weight);
        assert_ok(optimizer_step(setup.optim, setup.queue, step, lr, setup.weight));
        double norm = loop_step(&setup, step, lr, weight);
        optimizer_report told;
        assert_ok(optimizer_read(setup.optim, setup.queue, &told));
        assert_false(told.skipped);
        assert_true(fabs(told.grad_norm - norm) <= 1e-9 * norm);
        assert_true(clips == (norm > max_norm && max_norm > 0));
        compare_params(&setup);
    }
    close_bench(&setup);
}

static void test_optimizer__equals_the_loop(void **state)
{
    (void)state;
    run_steps(1e9, false);
}

static void test_optimizer__clips_to_the_norm(void **state)
{
    (void)state;
    run_steps(1.0, true);
}

static void test_optimizer__norm_zero_means_no_clipping(void **state)
{
    (void)state;
    run_steps(0.0, false);
}

/* A skipped update must change neither values nor moments, as the good step after it shows. */
static void skipped_then_good(double bad_value, double weight)
{
    bench setup;
    open_bench(&setup, 1.0);
    optimizer_report told;
    put_gradients(&setup, 3, 2.0);
    assert_ok(optimizer_step(setup.optim, setup.queue, 1, 0.1, setup.weight));
    loop_step(&setup, 1, 0.1, 2.0);

    put_gradients(&setup, 4, weight);
    param as_value = setup.registry->list[setup.registry->count / 2];
    as_value.value = as_value.own_act = as_value.grad;
    assert_ok(params_write(&as_value, setup.queue, as_value.count - 1, 1, &bad_value));
    assert_ok(optimizer_step(setup.optim, setup.queue, 2, 0.1, setup.weight));
    assert_ok(optimizer_read(setup.optim, setup.queue, &told));
    assert_true(told.skipped);
    compare_params(&setup);

    put_gradients(&setup, 5, 2.0);
    assert_ok(optimizer_step(setup.optim, setup.queue, 3, 0.1, setup.weight));
    assert_ok(optimizer_read(setup.optim, setup.queue, &told));
    assert_false(told.skipped);
    loop_step(&setup, 3, 0.1, 2.0);
    compare_params(&setup);
    close_bench(&setup);
}

static void test_optimizer__non_finite_gradient_skips(void **state)
{
    (void)state;
    skipped_then_good(NAN, 2.0);
    skipped_then_good(INFINITY, 2.0);
}

static void test_optimizer__no_targets_skip(void **state)
{
    (void)state;
    skipped_then_good(0.0, 0.0);
}

/* Twice the sums over twice the targets are the same mean, so gradient accumulation changes no
 * update. */
static void test_optimizer__sums_are_divided_by_targets(void **state)
{
    (void)state;
    bench once, twice;
    open_bench(&once, 1.0);
    open_bench(&twice, 1.0);
    put_gradients(&once, 8, 1.0);
    put_gradients(&twice, 8, 2.0);
    assert_ok(optimizer_step(once.optim, once.queue, 1, 0.1, once.weight));
    assert_ok(optimizer_step(twice.optim, twice.queue, 1, 0.1, twice.weight));
    loop_step(&once, 1, 0.1, 1.0);
    compare_params(&once);
    for (int64_t i = 0; i < twice.registry->count; i++)
        memcpy(twice.value[i], once.value[i],
               (size_t)twice.registry->list[i].count * sizeof(double));
    compare_params(&twice);
    close_bench(&once);
    close_bench(&twice);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optimizer__equals_the_loop),
        cmocka_unit_test(test_optimizer__clips_to_the_norm),
        cmocka_unit_test(test_optimizer__norm_zero_means_no_clipping),
        cmocka_unit_test(test_optimizer__non_finite_gradient_skips),
        cmocka_unit_test(test_optimizer__no_targets_skip),
        cmocka_unit_test(test_optimizer__sums_are_divided_by_targets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
