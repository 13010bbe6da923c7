/* test_calls.c: the memory plan's count of the calls in a micro-step (memory_gpu.h), compared with
 * the calls that a device captures. */
#include "tests/harness.h"

#include "tests/emulated/emulated.h"
#include "tests/unit/trainer/model/fixture.h"
#include "trainer/plan/memory_gpu.h"

/* Counts the calls of one forward and backward pass with these capacities. */
static int64_t count_captured(const model_dims *d, const model_options *o)
{
    fixture f;
    device *dev;
    stream *s;
    params *p;
    model *m;
    stager *g;
    device_batch *b;
    graph *made;
    loss_sums sums;
    assert_ok(emulated_open(0, true, &dev));
    assert_ok(dev->backend->stream_new(dev, &s));
    assert_ok(params_new(d, &p));
    assert_ok(params_alloc(p, s, true));
    assert_ok(model_new(s, d, p, o, &m));
    assert_ok(stager_new(s, d, &o->cap, &g));
    assert_ok(dev->backend->alloc(dev, sizeof(double), (void **)&sums.loss));
    assert_ok(dev->backend->alloc(dev, sizeof(double), (void **)&sums.weight));
    assert_ok(dev->backend->alloc(dev, sizeof(double), &sums.aux));
    fixture_open(&f, d);
    const row r = fixture_row(&f, &(document){d->vision.depth ? "4 1x4x6 3" : "20", 11}, 1, false);
    assert_ok(stage_rows(g, s, &r, 1, &b));
    assert_ok(dev->backend->capture_begin(s));
    assert_ok(model_forward_backward(m, s, b, &sums));
    assert_ok(dev->backend->capture_end(s, &made));
    const int64_t calls = emulated_captured(dev);
    assert_ok(dev->backend->wait(s)); /* the copies of the batch read its memory */
    dev->backend->graph_free(&made);
    stager_free(&g, s);
    model_free(&m, s);
    params_release(p, s);
    params_free(&p);
    dev->backend->release(dev, sums.loss);
    dev->backend->release(dev, sums.weight);
    dev->backend->release(dev, sums.aux);
    dev->backend->stream_free(&s);
    device_close(&dev);
    fixture_close(&f);
    return calls;
}

static void expect_counted(const model_dims *d, int64_t logit_rows)
{
    for (int full = 0; full < 2; full++) {
        const model_options o = {.cap = {.tokens = 64,
                                         .docs = 4,
                                         .patches = d->vision.depth ? 80 : 0,
                                         .items = 4,
                                         .frames = 5,
                                         .targets = 64},
                                 .training = true,
                                 .logit_rows = logit_rows,
                                 .recomputed = fixture_full(full)};
        assert_int_equal(count_captured(d, &o), memory_gpu_calls(d, &o, o.cap.targets));
    }
}

static void test_calls__are_counted(void **state)
{
    (void)state;
    model_dims d, deeper, text;
    assert_ok(dims_preset("debug", &d));
    expect_counted(&d, 64);
    expect_counted(&d, 16);
    deeper = d;
    deeper.text.layers += 2;
    deeper.vision.depth += 1;
    expect_counted(&deeper, 64);
    deeper.vision.n_deepstack = 1;
    expect_counted(&deeper, 64);
    text = d;
    text.vision = (vision_dims){0};
    expect_counted(&text, 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_calls__are_counted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
