/* SPDX-License-Identifier: Apache-2.0 */
/* test_measure.c: what the benches conclude from their measurements: a line fitted through points,
 * the spread of repeated times, loads of a given skew, and that what is timed has the bounds that a
 * run would pass. Letters: x, y the points of a line. */
#include "tests/harness.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/json/json.h"
#include "trainer/batch/batch_caps.h"
#include "trainer/bench/bench.h"
#include "trainer/bench/cases.h"
#include "trainer/input/receive.h"
#include "trainer/ops/attention_work.h"

static void expect_near(double got, double want, double within)
{
    if (!(fabs(got - want) <= within))
        fail_msg("got %.9g, wanted %.9g within %g", got, want, within);
}

static void test_fit__finds_a_line(void **state)
{
    (void)state;
    const double x[] = {2, 4, 6}, y[] = {7, 11, 15};
    bench_fit fit = bench_fit_line(x, y, 3);
    expect_near(fit.a, 3, 1e-12);
    expect_near(fit.b, 2, 1e-12);
    expect_near(fit.residual, 0, 1e-12);
}

static void test_fit__tells_the_largest_residual(void **state)
{
    (void)state;
    const double x[] = {1, 2, 3}, y[] = {10, 23, 30}; /* 1 + 10 x misses the points by 1, 2 and 1 */
    bench_fit fit = bench_fit_line(x, y, 3);
    expect_near(fit.a, 1, 1e-12);
    expect_near(fit.b, 10, 1e-12);
    expect_near(fit.residual, 1.0 / 10, 1e-12);
}

static void test_fit__one_point_is_a_line_through_zero(void **state)
{
    (void)state;
    const double x[] = {4}, y[] = {12};
    bench_fit fit = bench_fit_line(x, y, 1);
    expect_near(fit.a, 0, 0);
    expect_near(fit.b, 3, 1e-12);
}

static void test_spread(void **state)
{
    (void)state;
    double odd[] = {5, 1, 3}, even[] = {4, 1, 3, 2}, one[] = {7};
    bench_spread spread = bench_spread_of(odd, 3);
    expect_near(spread.mean, 3, 1e-12);
    expect_near(spread.median, 3, 0);
    expect_near(spread.deviation, 2, 1e-12);
    expect_near(spread.slowest, 5, 0);
    expect_near(spread.fastest, 1, 0);
    expect_near(bench_spread_of(even, 4).median, 2.5, 0);
    expect_near(bench_spread_of(one, 1).deviation, 0, 0);
    expect_near(bench_spread_of(even, 4).slow, 0.5, 1e-12); /* 3 and 4 are above 2.5 / 0.9 */
}

/* Depths of the H200's reports of 2026-11-26, in ms (tests/bench/results/gpu): photographs,
 * 5216d41f, and text, aafcce30. Useful FLOPs there had the head at every position. */
static const bench_depth photographs[] = {
    {3, {.mean = 815.864, .deviation = 5.629}, 25.749, 20636, 294.744e12},
    {4, {.mean = 840.007, .deviation = 0.840}, 31.104, 20636, 301.940e12},
    {5, {.mean = 859.066, .deviation = 4.038}, 36.413, 20636, 309.136e12},
};
static const bench_depth texts[] = {
    {3, {.mean = 448.386, .deviation = 1.031}, 21.144, 49152, 186.621e12},
    {4, {.mean = 548.103, .deviation = 2.412}, 26.553, 49152, 218.242e12},
    {6, {.mean = 744.786, .deviation = 2.234}, 37.094, 49152, 281.483e12},
};

static void test_projection__has_the_error_of_its_depths(void **state)
{
    (void)state;
    /* Lines through 3 and 4, and through 4 and 5 layers alone end 113 and 109 ms from that of all;
     * the deviations of the steps make more of it. */
    bench_projection what = bench_project(photographs, 3, 48, 8, 989e12);
    expect_near(what.step, 1556.3, 0.5);
    expect_near(what.step_error, 152.3, 1);
    expect_near(what.mfu, 40.19, 0.05);
    assert_true(what.mfu - what.mfu_error < 40 && 40 < what.mfu + what.mfu_error);
    assert_true(what.mfu - what.mfu_error > 30);
    /* Here the line through 3 and 4 layers alone ends farther from it. */
    what = bench_project(texts, 3, 48, 8, 989e12);
    expect_near(what.step, 4664.2, 0.5);
    expect_near(what.step_error, 39.3, 1);
    expect_near(what.mfu, 34.89, 0.05);
    expect_near(what.mfu_error, 0.29, 0.02);
}

static void test_projection__needs_two_depths(void **state)
{
    (void)state;
    char said[1024] = "";
    assert_true(isinf(bench_project(texts, 1, 48, 8, 989e12).mfu_error));
    const bench_depth twice[] = {texts[0], texts[0]};
    assert_true(isinf(bench_project(twice, 2, 48, 8, 989e12).step_error));
    /* A depth that is the whole model is measured, not projected. */
    expect_near(bench_project(texts, 1, 3, 1, 989e12).step_error, texts[0].step.deviation, 1e-9);
    FILE *to = fmemopen(said, sizeof said, "w");
    const bench_projection what = bench_project(photographs, 3, 48, 8, 989e12);
    bench_project_print(&what, 48, 8, 989e12, to);
    fclose(to);
    assert_non_null(strstr(said, "collectives not counted: step 1556.3 +- 15"));
    assert_non_null(strstr(said, "mfu: 40.19% +- 3.9"));
}

static void test_loads__have_the_skew_and_sum_asked_for(void **state)
{
    (void)state;
    const double skews[] = {1, 3, 8};
    for (int i = 0; i < 3; i++) {
        int32_t offset[129];
        bench_loads(128, 393216, skews[i], offset);
        assert_int_equal(offset[0], 0);
        assert_int_equal(offset[128], 393216);
        for (int expert = 1; expert < 128; expert++)
            assert_true(offset[expert + 1] - offset[expert] <=
                        offset[expert] - offset[expert - 1] + 1);
        expect_near((offset[1] - offset[0]) / (393216.0 / 128), skews[i], 0.01 * skews[i]);
    }
}

/* Attention chooses cuDNN by the bounds on its segments (their number and the longest), so a bench
 * must pass the bounds that a run passes, or it would time another kernel. */
static void test_attention__is_timed_with_its_bounds(void **state)
{
    (void)state;
    const backend_vtable sizes = {.act = DT_BF16, .acc = DT_F32};
    device dev = {.backend = &sizes};
    stream queue = {.dev = &dev};
    model_dims dims;
    assert_ok(dims_preset("qwen3-vl-30b-a3b", &dims));
    const bench_sizes shapes = {.dims = &dims,
                                .tokens = 32768,
                                .row = 4096,
                                .patches = 16384,
                                .frame = 1024,
                                .document = 128};
    int seen = 0;
    for (const bench_row *line = bench_products; line->op_name; line++) {
        const bool backward = line->op == BENCH_attention_bwd;
        if (line->op != BENCH_attention_fwd && !backward)
            continue;
        bench_case timed = {.queue = &queue, .sizes = &shapes, .counted = true};
        line->make(&timed);
        assert_ok(timed.st);
        const attention_fwd_args *args = &timed.args.attention_fwd;
        const attention_bwd_args *back = &timed.args.attention_bwd;
        const int64_t segments = backward ? back->segments : args->segments;
        const bool trees = strcmp(line->shape, "text, prefixes") == 0;
        /* A prefix is longer than its branches, so there are more segments than of its length. */
        const int64_t even = (backward ? back->tokens : args->tokens) / segments;
        assert_int_equal(backward ? back->longest : args->longest, trees ? shapes.document : even);
        assert_int_equal(trees, even < shapes.document);
        seen++;
    }
    assert_int_equal(seen, 13);
}

/* The rows that a bench makes carry their bounds, so that a captured step of a bench uses the same
 * kernels as a run. */
static void test_text_rows__carry_their_bounds(void **state)
{
    (void)state;
    enum { SEQ_LEN = 8192, DOCUMENT = 340, LOCAL = 2 };
    char *folder = harness_temp(), path[4096];
    model_dims dims;
    receiver *input;
    json_value *welcome;
    bucket_list list;
    received got;
    int64_t waited;
    snprintf(path, sizeof path, "%s/rows.rec", folder);
    assert_ok(dims_preset("debug", &dims));
    assert_ok(text_rows_record(path, &dims, LOCAL, SEQ_LEN, DOCUMENT, 0));
    assert_ok(receiver_open(&(receiver_options){.replay.path = path, .slots = LOCAL}, &input));
    const char *text = receiver_welcome(input);
    assert_ok(json_parse(text, strlen(text), "WELCOME", &welcome));
    const batch_caps widest = {.tokens = SEQ_LEN, .docs = SEQ_LEN, .targets = SEQ_LEN};
    assert_ok(bucket_list_read(welcome, LOCAL, &widest, &list));
    json_free(&welcome);
    assert_int_equal(list.count, 1);
    assert_int_equal(list.cap[0].longest, DOCUMENT);
    assert_true(attention_is_dense(list.cap[0].tokens, list.cap[0].docs, list.cap[0].longest));
    assert_ok(receiver_next(input, &got, &waited));
    const batch_caps has = batch_caps_count(&got.row, 1);
    assert_true(batch_caps_hold(&list.cap[0], &has));
    assert_int_equal(LOCAL * has.docs, list.cap[0].docs);
    receiver_give_back(input, &got);
    receiver_close(&input);
    harness_remove(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fit__finds_a_line),
        cmocka_unit_test(test_fit__tells_the_largest_residual),
        cmocka_unit_test(test_fit__one_point_is_a_line_through_zero),
        cmocka_unit_test(test_spread),
        cmocka_unit_test(test_projection__has_the_error_of_its_depths),
        cmocka_unit_test(test_projection__needs_two_depths),
        cmocka_unit_test(test_loads__have_the_skew_and_sum_asked_for),
        cmocka_unit_test(test_attention__is_timed_with_its_bounds),
        cmocka_unit_test(test_text_rows__carry_their_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
