/* SPDX-License-Identifier: Apache-2.0 */
/* test_params_init.c: first values. Those of training are the same bits as ever for a seed, and
 * those of benches repeat, but are otherwise like them. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "tests/emulated/emulated.h"
#include "tests/harness.h"
#include "trainer/model/params/params.h"
#include "trainer/ops/open.h"

enum { SEED = 3, PERIOD = 1009 };

/* The preset `debug` on a device that the caller has opened. */
typedef struct bench {
    device *dev;
    stream *queue;
    params *registry;
} bench;

static void open_on(device *dev, bench *setup)
{
    model_dims dims;
    assert_ok(dims_preset("debug", &dims));
    setup->dev = dev;
    assert_ok(dev->backend->stream_new(dev, &setup->queue));
    assert_ok(params_new(&dims, &setup->registry));
    assert_ok(params_alloc(setup->registry, setup->queue, false));
}

static void open_bench(bench *setup)
{
    device *dev;
    assert_ok(device_open(BACKEND_CPU, &(device_options){.threads = 1}, &dev));
    open_on(dev, setup);
}

static void close_bench(bench *setup)
{
    params_release(setup->registry, setup->queue);
    params_free(&setup->registry);
    setup->dev->backend->stream_free(&setup->queue);
    device_close(&setup->dev);
}

/* A hash over all values in the order of the registry. Device memory is host memory here. */
static void hash_values(const params *registry, char hex[33])
{
    hash128 all = {{0}};
    for (int64_t i = 0; i < registry->count; i++) {
        const param *row = &registry->list[i];
        all = hash_chain(all, hash_bytes(row->value, (size_t)row->own_n * sizeof(float)));
    }
    for (int i = 0; i < 16; i++)
        snprintf(hex + (size_t)2 * (size_t)i, 3, "%02x", all.bytes[i]);
}

/* Runs that are repeated with the same seed must begin as they always did. */
static void test_params_init__a_seed_keeps_its_values(void **state)
{
    (void)state;
    bench setup;
    char hex[33];
    open_bench(&setup);
    assert_ok(params_init(setup.registry, setup.queue, SEED));
    hash_values(setup.registry, hex);
    assert_string_equal(hex, "1caca2d1e0bc887a6a64423a56c4c469");
    close_bench(&setup);
}

static double deviation(const float *value, int64_t count)
{
    double sum = 0.0, squares = 0.0;
    for (int64_t i = 0; i < count; i++) {
        sum += (double)value[i];
        squares += (double)value[i] * (double)value[i];
    }
    const double mean = sum / (double)count;
    return sqrt(squares / (double)count - mean * mean);
}

static void check_repeating(const param *row, const float *whole)
{
    const float *value = row->value;
    for (int64_t i = 0; i < row->own_n; i++)
        assert_true(value[i] == whole[i % PERIOD]);
    if (row->init == INIT_NORMAL && row->own_n >= PERIOD)
        assert_true(fabs(deviation(value, row->own_n) / row->init_std - 1.0) < 0.12);
}

static void test_params_init__values_of_benches_repeat(void **state)
{
    (void)state;
    bench whole, setup;
    int64_t repeated = 0, experts = 0;
    open_bench(&whole);
    open_bench(&setup);
    assert_ok(params_init(whole.registry, whole.queue, SEED));
    assert_ok(params_init_repeating(setup.registry, setup.queue, SEED, PERIOD));
    for (int64_t i = 0; i < setup.registry->count; i++) {
        const param *row = &setup.registry->list[i];
        check_repeating(row, whole.registry->list[i].value);
        repeated += row->own_n > PERIOD;
        if (row->group != GROUP_EXPERTS)
            continue;
        const int64_t one = row->own_n / row->shape[0];
        for (int64_t at = one; at < row->own_n; at += one, experts++)
            assert_memory_not_equal(row->value, (const float *)row->value + at,
                                    (size_t)one * sizeof(float));
    }
    assert_true(repeated > 50);
    assert_true(experts > 50);
    close_bench(&setup);
    close_bench(&whole);
}

/* A block is drawn while the one before it is copied. A device that copies as late as it may gets
 * the same values, so no buffer is written before its copy is done. */
static void test_params_init__a_late_device_gets_the_same_values(void **state)
{
    (void)state;
    device *late;
    bench setup, other;
    char early[33], found[33];
    assert_ok(emulated_open(0, false, &late));
    open_bench(&setup);
    open_on(late, &other);
    assert_ok(params_init(setup.registry, setup.queue, SEED));
    assert_ok(params_init(other.registry, other.queue, SEED));
    hash_values(setup.registry, early);
    hash_values(other.registry, found);
    assert_string_equal(early, found);
    assert_ok(params_init_repeating(setup.registry, setup.queue, SEED, PERIOD));
    assert_ok(params_init_repeating(other.registry, other.queue, SEED, PERIOD));
    hash_values(setup.registry, early);
    hash_values(other.registry, found);
    assert_string_equal(early, found);
    close_bench(&other);
    close_bench(&setup);
}

/* With a period that nothing reaches, the values are those of training. */
static void test_params_init__a_long_period_changes_nothing(void **state)
{
    (void)state;
    bench setup;
    char plain[33], repeating[33];
    open_bench(&setup);
    assert_ok(params_init(setup.registry, setup.queue, SEED));
    hash_values(setup.registry, plain);
    assert_ok(params_init_repeating(setup.registry, setup.queue, SEED, INT64_C(1) << 40));
    hash_values(setup.registry, repeating);
    assert_string_equal(plain, repeating);
    close_bench(&setup);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_params_init__a_seed_keeps_its_values),
        cmocka_unit_test(test_params_init__values_of_benches_repeat),
        cmocka_unit_test(test_params_init__a_late_device_gets_the_same_values),
        cmocka_unit_test(test_params_init__a_long_period_changes_nothing),
    };
    return cmocka_run_group_tests_name("params_init", tests, NULL, NULL);
}
