/* test_nonfinite.c: a step whose gradient is not finite says where that began. The test spoils
 * values of the debug model, one layer at a time. tests/flow/train_nonfinite.py tests several
 * ranks. */
#include "tests/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/trainer/run/step_bench.h"

#define LAYER "model.language_model.layers.1.self_attn."

typedef struct files {
    fixture f;
    char *folder, *recording;
} files;

static int set_up(void **state)
{
    files *x = calloc(1, sizeof *x);
    model_dims d;
    assert_ok(dims_preset("debug", &d));
    fixture_open(&x->f, &d);
    x->folder = harness_temp();
    x->recording = bench_record(&x->f, x->folder);
    *state = x;
    return 0;
}

static int tear_down(void **state)
{
    files *x = *state;
    fixture_close(&x->f);
    harness_remove(&x->folder);
    free(x->recording);
    free(x);
    return 0;
}

/* Sets elements [first, first + n) of a parameter; n 0 means all from there on. */
static void spoil(session *s, const char *name, int64_t first, int64_t n, double value)
{
    const param *p = params_get(s->params, "%s", name);
    n = n ? n : p->n_local;
    double *values = malloc((size_t)n * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < n; i++)
        values[i] = value;
    assert_ok(params_write(p, s->stream, first, n, values));
    free(values);
}

static void expect_words(const step_report *r, const char *words)
{
    assert_true(r->skipped);
    assert_non_null(r->where);
    if (!strstr(r->where, words))
        fail_msg("\"%s\" does not say \"%s\"", r->where, words);
}

static void spoil_and_expect(const files *x, const char *name, double value, const char *words)
{
    bench b;
    step_report r;
    bench_open(&b, x->recording, -1, "none", &bench_no_buckets);
    b.s.accumulation = 1;
    assert_ok(step_run(&b.s, 1, &r));
    assert_null(r.where);
    spoil(&b.s, name, 0, isnan(value) ? 1 : 0, value);
    assert_ok(step_run(&b.s, 2, &r));
    expect_words(&r, words);
    session_close(&b.s);
}

static void test_nonfinite__value(void **state)
{
    spoil_and_expect(
        *state, LAYER "o_proj.weight", NAN,
        "values of layer 1 (" LAYER "o_proj.weight) are not finite, stored by rank 0; "
        "the forward pass is not finite from layer 1 on: rank 0 (samples 41 42 51 52)");
}

static void test_nonfinite__vision(void **state)
{
    spoil_and_expect(*state, "model.visual.blocks.2.mlp.linear_fc2.weight", NAN,
                     "the forward pass is not finite from vision block 2 on");
    spoil_and_expect(*state, "model.visual.deepstack_merger_list.1.linear_fc2.weight", NAN,
                     "the forward pass is not finite from deepstack merger 1 on");
}

/* Every value is finite, but products of them are not. */
static void test_nonfinite__overflow(void **state)
{
    spoil_and_expect(
        *state, LAYER "v_proj.weight", 3e38,
        "the forward pass is not finite from layer 1 on: rank 0 (samples 41 42 51 52)");
    spoil_and_expect(*state, "lm_head.weight", 3e38,
                     "the forward pass is not finite from head on: rank 0");
}

/* v = 0 hides the too large weights after it from the forward pass, but not from the backward
 * pass. */
static void test_nonfinite__backward(void **state)
{
    bench b;
    step_report r;
    bench_open(&b, ((files *)*state)->recording, -1, "none", &bench_no_buckets);
    spoil(&b.s, LAYER "v_proj.weight", 0, 0, 0);
    spoil(&b.s, LAYER "o_proj.weight", 0, 0, 3e38);
    assert_ok(step_run(&b.s, 1, &r));
    assert_true(isfinite(r.loss));
    expect_words(&r, "every loss is finite, and in the backward pass layer 1 is the first whose "
                     "gradient is not, "
                     "held by rank 0 (samples ");
    session_close(&b.s);
}

/* Two such steps follow each other. The first is reported when the second has already overwritten
 * what it left. */
static void test_nonfinite__two_steps_under_way(void **state)
{
    bench b;
    step_report r;
    bench_open(&b, ((files *)*state)->recording, 1, "step", &bench_no_buckets);
    spoil(&b.s, LAYER "o_proj.weight", 0, 1, NAN);
    assert_ok(step_queue(&b.s, 1));
    assert_ok(step_queue(&b.s, 2));
    assert_ok(step_told(&b.s, &r));
    expect_words(&r, "values of layer 1 (" LAYER
                     "o_proj.weight) are not finite, stored by rank 0; the loss is "
                     "not finite: rank 0 (samples ");
    expect_words(&r, "the layer is not known, because the next step was already under way");
    assert_ok(step_told(&b.s, &r));
    expect_words(&r, "the forward pass is not finite from layer 1 on: rank 0 (samples ");
    session_close(&b.s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nonfinite__value),
        cmocka_unit_test(test_nonfinite__vision),
        cmocka_unit_test(test_nonfinite__overflow),
        cmocka_unit_test(test_nonfinite__backward),
        cmocka_unit_test(test_nonfinite__two_steps_under_way),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
