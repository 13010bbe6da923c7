/* SPDX-License-Identifier: Apache-2.0 */
/* test_nonfinite.c: a step whose gradient is not finite says where that began. The test spoils
 * values of the debug model, one layer at a time. tests/flow/train_nonfinite.py tests several
 * ranks. */
#include "tests/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/trainer/run/step_bench.h"

#define LAYER "model.language_model.layers.1.self_attn."

/* Sets elements [first, first + count) of a parameter; count 0 means all from there on. */
static void spoil(session *run, const char *name, int64_t first, int64_t count, double value)
{
    const param *weight = params_get(run->params, "%s", name);
    count = count ? count : weight->n_local;
    double *values = malloc((size_t)count * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < count; i++)
        values[i] = value;
    assert_ok(params_write(weight, run->stream, first, count, values));
    free(values);
}

static void expect_words(const step_report *report, const char *words)
{
    assert_true(report->skipped);
    assert_non_null(report->where);
    if (!strstr(report->where, words))
        fail_msg("\"%s\" does not say \"%s\"", report->where, words);
}

static void spoil_and_expect(const bench_files *paths, const char *name, double value,
                             const char *words)
{
    bench setup;
    step_report report;
    bench_open(&setup, paths->recording, -1, "none", &bench_no_buckets);
    setup.run.accumulation = 1;
    assert_ok(step_run(&setup.run, 1, &report));
    assert_null(report.where);
    spoil(&setup.run, name, 0, isnan(value) ? 1 : 0, value);
    assert_ok(step_run(&setup.run, 2, &report));
    expect_words(&report, words);
    session_close(&setup.run);
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
    bench setup;
    step_report report;
    bench_open(&setup, ((bench_files *)*state)->recording, -1, "none", &bench_no_buckets);
    spoil(&setup.run, LAYER "v_proj.weight", 0, 0, 0);
    spoil(&setup.run, LAYER "o_proj.weight", 0, 0, 3e38);
    assert_ok(step_run(&setup.run, 1, &report));
    assert_true(isfinite(report.loss));
    expect_words(&report,
                 "every loss is finite, and in the backward pass layer 1 is the first whose "
                 "gradient is not, "
                 "held by rank 0 (samples ");
    session_close(&setup.run);
}

/* Two such steps follow each other. The first is reported when the second has already overwritten
 * what it left. */
static void test_nonfinite__two_steps_under_way(void **state)
{
    bench setup;
    step_report report;
    bench_open(&setup, ((bench_files *)*state)->recording, 1, "step", &bench_no_buckets);
    spoil(&setup.run, LAYER "o_proj.weight", 0, 1, NAN);
    assert_ok(step_queue(&setup.run, 1));
    assert_ok(step_queue(&setup.run, 2));
    assert_ok(step_wait(&setup.run, &report));
    expect_words(&report, "values of layer 1 (" LAYER
                          "o_proj.weight) are not finite, stored by rank 0; the loss is "
                          "not finite: rank 0 (samples ");
    expect_words(&report, "the layer is not known, because the next step was already under way");
    assert_ok(step_wait(&setup.run, &report));
    expect_words(&report, "the forward pass is not finite from layer 1 on: rank 0 (samples ");
    session_close(&setup.run);
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
    return cmocka_run_group_tests(tests, bench_files_open, bench_files_close);
}
