/* SPDX-License-Identifier: Apache-2.0 */
/* test_calls.c: the memory plan's count of the calls in a micro-step (plan/memory.h), compared with
 * the calls that a device captures. */
#include "tests/harness.h"

#include "tests/emulated/emulated.h"
#include "tests/unit/trainer/model/fixture.h"
#include "trainer/plan/memory.h"

/* Counts the calls of one forward and backward pass with these capacities. */
static int64_t count_captured(const model_dims *dims, const model_options *options)
{
    fixture setup;
    device *dev;
    stream *queue;
    params *registry;
    model *net;
    stager *staging;
    device_batch *batch;
    graph *made;
    loss_sums sums;
    assert_ok(emulated_open(0, true, &dev));
    assert_ok(dev->backend->stream_new(dev, &queue));
    assert_ok(params_new(dims, &registry));
    assert_ok(params_alloc(registry, queue, true));
    assert_ok(model_new(queue, dims, registry, options, &net));
    assert_ok(stager_new(queue, dims, &options->cap, &staging));
    assert_ok(dev->backend->alloc(dev, sizeof(double), (void **)&sums.loss));
    assert_ok(dev->backend->alloc(dev, sizeof(double), (void **)&sums.weight));
    assert_ok(dev->backend->alloc(dev, sizeof(double), &sums.aux));
    fixture_open(&setup, dims);
    const row packed =
        fixture_row(&setup, &(document){dims->vision.depth ? "4 1x4x6 3" : "20", 11}, 1, false);
    assert_ok(stage_rows(staging, queue, &packed, 1, &batch));
    assert_ok(dev->backend->capture_begin(queue));
    assert_ok(model_forward_backward(net, queue, batch, &sums));
    assert_ok(dev->backend->capture_end(queue, &made));
    const int64_t calls = emulated_captured(dev);
    assert_ok(dev->backend->wait(queue)); /* the copies of the batch read its memory */
    dev->backend->graph_free(&made);
    stager_free(&staging, queue);
    model_free(&net, queue);
    params_release(registry, queue);
    params_free(&registry);
    dev->backend->release(dev, sums.loss);
    dev->backend->release(dev, sums.weight);
    dev->backend->release(dev, sums.aux);
    dev->backend->stream_free(&queue);
    device_close(&dev);
    fixture_close(&setup);
    return calls;
}

static void expect_counted(const model_dims *dims, int64_t logit_rows)
{
    for (int full = 0; full < 2; full++) {
        const model_options options = {.cap = {.tokens = 64,
                                               .docs = 4,
                                               .patches = dims->vision.depth ? 80 : 0,
                                               .items = 4,
                                               .frames = 5,
                                               .targets = 64},
                                       .training = true,
                                       .logit_rows = logit_rows,
                                       .recomputed = fixture_full(full)};
        assert_int_equal(count_captured(dims, &options),
                         memory_gpu_calls(dims, &options, options.cap.targets));
    }
}

static void test_calls__are_counted(void **state)
{
    (void)state;
    model_dims dims, deeper, text;
    assert_ok(dims_preset("debug", &dims));
    expect_counted(&dims, 64);
    expect_counted(&dims, 16);
    deeper = dims;
    deeper.text.layers += 2;
    deeper.vision.depth += 1;
    expect_counted(&deeper, 64);
    deeper.vision.n_deepstack = 1;
    expect_counted(&deeper, 64);
    text = dims;
    text.vision = (vision_dims){0};
    expect_counted(&text, 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_calls__are_counted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
