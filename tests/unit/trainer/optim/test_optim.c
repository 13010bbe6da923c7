/* test_optim.c: the optimiser over all parameters, compared with AdamW as a loop in double
 * (Loshchilov and Hutter 2019): bias correction, clipping, decay of matrices only, division by the
 * number of targets, skipped updates. Built twice, with the float ops and with the double ones. */
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
    stream *s;
    params *p;
    optimizer *o;
    conf c;
    double *weight;                /* on the device */
    double **value, **m, **v, **g; /* [p->n] the loop's state */
} bench;

static double *filled(int64_t n, double mean, double spread, const char *purpose, uint64_t seed)
{
    double *x = malloc((size_t)n * sizeof *x);
    assert_non_null(x);
    rng_key key = rng_key_make(seed, purpose);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(mean + spread * rng_normal(key, (uint64_t)i));
    return x;
}

static void open_bench(bench *b, double max_norm)
{
    model_dims d;
    *b = (bench){0};
    assert_ok(dims_preset("debug", &d));
    d.text.vocab = 64; /* small, since every element is compared */
    d.text.experts = 4;
    assert_ok(device_open(BACKEND_CPU, &(device_options){.threads = 2}, &b->dev));
    assert_ok(b->dev->backend->stream_new(b->dev, &b->s));
    assert_ok(params_new(&d, &b->p));
    assert_ok(params_alloc(b->p, b->s, true));
    assert_ok(b->dev->backend->alloc(b->dev, sizeof *b->weight, (void **)&b->weight));
    size_t n = (size_t)b->p->count;
    b->value = calloc(n, sizeof *b->value);
    b->m = calloc(n, sizeof *b->m);
    b->v = calloc(n, sizeof *b->v);
    b->g = calloc(n, sizeof *b->g);
    for (int64_t i = 0; i < b->p->count; i++) {
        const param *q = &b->p->list[i];
        b->value[i] = filled(q->count, 0.5, 0.3, q->name, 1);
        assert_ok(params_write(q, b->s, 0, q->count, b->value[i]));
        b->m[i] = calloc((size_t)q->count, sizeof(double));
        b->v[i] = calloc((size_t)q->count, sizeof(double));
    }
    b->c.optimizer_beta1 = 0.9;
    b->c.optimizer_beta2 = 0.95;
    b->c.optimizer_eps = 1e-8;
    b->c.optimizer_weight_decay = 0.1;
    b->c.training_max_norm = max_norm;
    assert_ok(optimizer_new(&b->c, b->p, b->s, &b->o));
}

static void close_bench(bench *b)
{
    for (int64_t i = 0; i < b->p->count; i++) {
        free(b->value[i]);
        free(b->m[i]);
        free(b->v[i]);
        free(b->g[i]);
    }
    free(b->value);
    free(b->m);
    free(b->v);
    free(b->g);
    optimizer_free(&b->o, b->s);
    b->dev->backend->release(b->dev, b->weight);
    params_release(b->p, b->s);
    params_free(&b->p);
    b->dev->backend->stream_free(&b->s);
    device_close(&b->dev);
}

/* Gives both sides gradients that are sums over `weight` targets. */
static void put_gradients(bench *b, uint64_t seed, double weight)
{
    for (int64_t i = 0; i < b->p->count; i++) {
        param as_value = b->p->list[i];
        free(b->g[i]);
        b->g[i] = filled(as_value.count, 0.0, weight, as_value.name, seed);
        as_value.value = as_value.own_act = as_value.grad; /* params_write writes `value` */
        assert_ok(params_write(&as_value, b->s, 0, as_value.count, b->g[i]));
    }
    assert_ok(b->dev->backend->to_device(b->s, b->weight, &weight, sizeof weight));
}

/* One step of the loop. Returns the norm of the mean gradient before clipping. */
static double loop_step(bench *b, int64_t step, double lr, double weight)
{
    double squares = 0;
    for (int64_t i = 0; i < b->p->count; i++)
        for (int64_t j = 0; j < b->p->list[i].count; j++)
            squares += pow(b->g[i][j] / weight, 2);
    double norm = sqrt(squares), clip = 1, max = b->c.training_max_norm;
    if (max > 0 && norm > max)
        clip = max / norm;
    for (int64_t i = 0; i < b->p->count; i++) {
        double decay = b->p->list[i].n_dims > 1 ? 0.1 : 0;
        for (int64_t j = 0; j < b->p->list[i].count; j++) {
            double g = b->g[i][j] / weight * clip;
            double *m = &b->m[i][j], *v = &b->v[i][j], *x = &b->value[i][j];
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
static void compare_params(const bench *b)
{
    for (int64_t i = 0; i < b->p->count; i++) {
        const param *q = &b->p->list[i];
        double *got = malloc((size_t)q->count * sizeof *got);
        assert_ok(params_read(q->value, b->s, 0, q->count, got));
        for (int64_t j = 0; j < q->count; j++)
            if (!(fabs(got[j] - b->value[i][j]) <= tolerance * (1 + fabs(b->value[i][j]))))
                fail_msg("%s[%lld]: %.17g, the loop has %.17g", q->name, (long long)j, got[j],
                         b->value[i][j]);
        free(got);
    }
}

static void run_steps(double max_norm, bool clips)
{
    bench b;
    open_bench(&b, max_norm);
    for (int64_t step = 1; step <= 5; step++) {
        double lr = 0.01 * (double)step, weight = 3.0 * (double)step;
        put_gradients(&b, 10 + (uint64_t)step, weight);
        assert_ok(optimizer_step(b.o, b.s, step, lr, b.weight));
        double norm = loop_step(&b, step, lr, weight);
        optimizer_report told;
        assert_ok(optimizer_read(b.o, b.s, &told));
        assert_false(told.skipped);
        assert_true(fabs(told.grad_norm - norm) <= 1e-9 * norm);
        assert_true(clips == (norm > max_norm && max_norm > 0));
        compare_params(&b);
    }
    close_bench(&b);
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
    bench b;
    open_bench(&b, 1.0);
    optimizer_report told;
    put_gradients(&b, 3, 2.0);
    assert_ok(optimizer_step(b.o, b.s, 1, 0.1, b.weight));
    loop_step(&b, 1, 0.1, 2.0);

    put_gradients(&b, 4, weight);
    param as_value = b.p->list[b.p->count / 2];
    as_value.value = as_value.own_act = as_value.grad;
    assert_ok(params_write(&as_value, b.s, as_value.count - 1, 1, &bad_value));
    assert_ok(optimizer_step(b.o, b.s, 2, 0.1, b.weight));
    assert_ok(optimizer_read(b.o, b.s, &told));
    assert_true(told.skipped);
    compare_params(&b);

    put_gradients(&b, 5, 2.0);
    assert_ok(optimizer_step(b.o, b.s, 3, 0.1, b.weight));
    assert_ok(optimizer_read(b.o, b.s, &told));
    assert_false(told.skipped);
    loop_step(&b, 3, 0.1, 2.0);
    compare_params(&b);
    close_bench(&b);
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
    assert_ok(optimizer_step(once.o, once.s, 1, 0.1, once.weight));
    assert_ok(optimizer_step(twice.o, twice.s, 1, 0.1, twice.weight));
    loop_step(&once, 1, 0.1, 1.0);
    compare_params(&once);
    for (int64_t i = 0; i < twice.p->count; i++)
        memcpy(twice.value[i], once.value[i], (size_t)twice.p->list[i].count * sizeof(double));
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
