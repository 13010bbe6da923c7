/* SPDX-License-Identifier: Apache-2.0 */
/* test_in_backward.c: optimizer.in_backward. Without clipping it leaves the values of an update
 * after the whole backward pass, to the bit, captured or not. So do moments that rest on the host,
 * in an update of either kind. A step that cannot count changes nothing, and one whose backward
 * pass meets a gradient that is not finite keeps the updates that came before it and says which
 * they are. tests/flow/train_in_backward.py has several ranks. */
#include "tests/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/trainer/run/step_bench.h"
#include "trainer/model/params/unit_order.h"

#define LAYER "model.language_model.layers.1.self_attn."

/* One array of every parameter after the other, in host memory that the caller frees. */
enum array { VALUES, FIRST_MOMENTS, SECOND_MOMENTS, ARRAYS };

static double *read_array(session *run, enum array which)
{
    double *all = malloc((size_t)run->params->total * sizeof *all);
    assert_non_null(all);
    int64_t at = 0;
    for (int64_t i = 0; i < run->params->count; i++) {
        const param *weight = &run->params->list[i];
        const void *const from[ARRAYS] = {weight->value, weight->moment1, weight->moment2};
        if (from[which])
            assert_ok(params_read(from[which], run->stream, 0, weight->n_local, all + at));
        else
            memset(all + at, 0, (size_t)weight->n_local * sizeof *all);
        at += weight->n_local;
    }
    return all;
}

static void expect_same(session *run, session *other)
{
    for (int i = 0; i < ARRAYS; i++) {
        double *first = read_array(run, i), *second = read_array(other, i);
        assert_memory_equal(first, second, (size_t)run->params->total * sizeof *first);
        free(first);
        free(second);
    }
}

static void test_in_backward__gives_the_bits_of_whole_updates(void **state)
{
    const bench_files *paths = *state;
    /* The last member: moments rest on the host in updates of units; if not, in whole ones. */
    const bench_how ways[] = {
        {-1, "none", &bench_no_buckets, true, 0, true},
        {0, "none", &bench_no_buckets, true, 0, false},
        {1, "step", &bench_buckets, true, 0, true},
        {1, "attn experts vision", &bench_buckets, true, 0, true},
        {1, "step", &bench_buckets, true, 0, false},
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        bench whole, units;
        bench_how other = ways[i];
        other.in_backward = false;
        other.moments_on_host = !ways[i].moments_on_host;
        bench_open_as(&whole, paths->recording, &other);
        whole.run.accumulation = 1;
        bench_open_as(&units, paths->recording, &ways[i]);
        for (int64_t step = 1; step <= STEPS; step++) {
            step_report wanted, got;
            assert_ok(step_run(&whole.run, step, &wanted));
            assert_ok(step_run(&units.run, step, &got));
            assert_true(got.loss == wanted.loss && !got.skipped && got.stopped_at == -1);
            assert_string_equal(got.updated, "");
            assert_true(fabs(got.grad_norm - wanted.grad_norm) < 1e-12 * wanted.grad_norm);
            for (int j = 0; j < GROUP_COUNT; j++)
                assert_true(fabs(got.group_norm[j] - wanted.group_norm[j]) <
                            1e-6 * wanted.grad_norm);
        }
        expect_same(&whole.run, &units.run);
        session_close(&whole.run);
        session_close(&units.run);
    }
}

/* Frozen weights that rest on the host give the bits of those that lie on the device. */
static void test_in_backward__frozen_weights_come_from_the_host(void **state)
{
    const bench_files *paths = *state;
    const bench_how ways[] = {{-1, "none", &bench_no_buckets, true, 0, false, true, true},
                              {0, "none", &bench_no_buckets, false, 0, false, true, true},
                              {1, "step", &bench_buckets, true, 0, true, true, true}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        bench near, far;
        bench_how other = ways[i];
        other.frozen_on_host = other.moments_on_host = false;
        bench_open_as(&near, paths->recording, &other);
        bench_open_as(&far, paths->recording, &ways[i]);
        const params *registry = far.run.params;
        assert_true(registry->resting.count > registry->acts.count / 2 && registry->resting.at);
        assert_int_equal(registry->acts.count, registry->trained_elements);
        for (int64_t step = 1; step <= STEPS; step++) {
            step_report wanted, got;
            assert_ok(step_run(&near.run, step, &wanted));
            assert_ok(step_run(&far.run, step, &got));
            assert_true(got.loss == wanted.loss && got.grad_norm == wanted.grad_norm);
        }
        expect_same(&near.run, &far.run);
        session_close(&near.run);
        session_close(&far.run);
    }
}

/* Gradients live in two buffers, the larger of the even units and the larger of the odd ones. */
static void test_in_backward__gradients_take_the_memory_of_two_units(void **state)
{
    bench units;
    params_sizes turns;
    bench_open_as(&units, ((bench_files *)*state)->recording,
                  &(bench_how){-1, "none", &bench_no_buckets, true, 0, false});
    params *registry = units.run.params;
    assert_null(registry->grads.at);
    assert_ok(params_size(registry, units.run.device->backend, true, &turns));
    int64_t largest = 0, of_unit = 0;
    for (int64_t i = 0; i < registry->n_spans; i++) {
        const unit_span *part = &registry->spans[i];
        of_unit = i > 0 && part[-1].unit == part->unit ? of_unit + part->piece : part->piece;
        largest = of_unit > largest ? of_unit : largest;
    }
    assert_true(turns.gathered_bytes > largest * (int64_t)sizeof(float));
    assert_true(turns.gathered_bytes <= 2 * largest * (int64_t)sizeof(float) + 4096);
    session_close(&units.run);
}

/* The norm of the gradient that a step gave to the first moments, after clipping. */
static double given_norm(const double *before, const double *after, int64_t count)
{
    double squares = 0;
    for (int64_t i = 0; i < count; i++) {
        const double given = (after[i] - 0.9 * before[i]) / 0.1; /* beta1 of step_bench.c */
        squares += given * given;
    }
    return sqrt(squares);
}

static void spoil(session *run, const char *name, double value)
{
    const param *weight = params_get(run->params, "%s", name);
    double *values = malloc((size_t)weight->n_local * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < weight->n_local; i++)
        values[i] = value;
    assert_ok(params_write(weight, run->stream, 0, weight->n_local, values));
    free(values);
}

/* A gradient of a hundred times the norm of the step before is clipped as one of any other norm is,
 * since the units that come first tell of it. By what the step before was it would not be. */
static void test_in_backward__a_sudden_norm_is_clipped(void **state)
{
    bench units;
    step_report calm, sudden;
    bench_open_as(&units, ((bench_files *)*state)->recording,
                  &(bench_how){-1, "none", &bench_no_buckets, true, 1, true});
    session *run = &units.run;
    for (int64_t step = 1; step <= 3; step++)
        assert_ok(step_run(run, step, &calm));
    spoil(run, "model.language_model.norm.weight", 100);
    double *before = read_array(run, FIRST_MOMENTS);
    assert_ok(step_run(run, 4, &sudden));
    assert_true(!sudden.skipped && sudden.grad_norm > 30 * calm.grad_norm && sudden.grad_norm > 30);
    double *after = read_array(run, FIRST_MOMENTS);
    const double norm = given_norm(before, after, run->params->total);
    print_message("norms %g and %g; clipped %g\n", calm.grad_norm, sudden.grad_norm, norm);
    assert_true(norm > 0.5 && norm < 2); /* of training.max_norm, which is 1 */
    free(before);
    free(after);
    session_close(run);
}

/* A run continues with the shares of its checkpoint, to the bit; those of units that are frozen now
 * go to the others. */
static void test_in_backward__shares_are_taken_over(void **state)
{
    double share[256], got[256];
    for (int frozen = 0; frozen < 2; frozen++) {
        bench units;
        for (int i = 0; i < 256; i++)
            share[i] = 0.1;
        bench_open_as(
            &units, ((bench_files *)*state)->recording,
            &(bench_how){-1, "none", &bench_no_buckets, true, 1, false, frozen, false, share});
        session *run = &units.run;
        const int count = unit_count(&run->dims), first = frozen ? unit_embedding(&run->dims) : 0;
        assert_true(count < 256);
        assert_ok(optimizer_fetch_shares(run->optimizer, run->stream, got));
        assert_ok(run->device->backend->wait(run->stream));
        for (int i = 0; i < count; i++)
            assert_true(i < first ? got[i] == 0
                        : frozen  ? fabs(got[i] * (count - first) - 1) < 1e-14
                                  : got[i] == share[i]);
        session_close(run);
    }
}

/* v = 0 hides the too large weights after it from the forward pass, but not from the backward
 * pass, which comes to layer 1 after the head and layers 3 and 2. */
static void test_in_backward__a_partial_step_keeps_what_came_before(void **state)
{
    bench units;
    step_report report;
    bench_open_as(&units, ((bench_files *)*state)->recording,
                  &(bench_how){-1, "none", &bench_no_buckets, true, 1, true});
    session *run = &units.run;
    spoil(run, LAYER "v_proj.weight", 0);
    spoil(run, LAYER "o_proj.weight", 3e38);
    double *before = read_array(run, VALUES), *moments = read_array(run, FIRST_MOMENTS);
    assert_ok(step_run(run, 1, &report));
    assert_true(isfinite(report.loss) && report.skipped && !isfinite(report.grad_norm));
    assert_string_equal(report.updated, "head to layer 2");
    assert_non_null(strstr(report.where, "in the backward pass layer 1 is the first whose gradient "
                                         "is not"));
    double *after = read_array(run, VALUES), *later = read_array(run, FIRST_MOMENTS);
    int64_t at = 0, kept = 0, updated = 0;
    for (int64_t i = 0; i < run->params->count; at += run->params->list[i++].n_local) {
        const param *weight = &run->params->list[i];
        const size_t bytes = (size_t)weight->n_local * sizeof *before;
        const bool same = memcmp(before + at, after + at, bytes) == 0 &&
                          memcmp(moments + at, later + at, bytes) == 0;
        assert_int_equal(same, weight->unit <= report.stopped_at);
        *(same ? &kept : &updated) += 1;
    }
    assert_true(kept > 0 && updated > 0);
    free(before);
    free(moments);
    free(after);
    free(later);
    session_close(run);
}

static void test_in_backward__a_loss_that_is_not_finite_changes_nothing(void **state)
{
    bench units;
    step_report report;
    bench_open_as(&units, ((bench_files *)*state)->recording,
                  &(bench_how){-1, "none", &bench_no_buckets, true, 1, true});
    session *run = &units.run;
    spoil(run, LAYER "v_proj.weight", 3e38);
    double *before = read_array(run, VALUES);
    assert_ok(step_run(run, 1, &report));
    assert_true(!isfinite(report.loss) && report.skipped);
    assert_string_equal(report.updated, "");
    double *after = read_array(run, VALUES);
    assert_memory_equal(before, after, (size_t)run->params->total * sizeof *before);
    free(before);
    free(after);
    session_close(run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_backward__gives_the_bits_of_whole_updates),
        cmocka_unit_test(test_in_backward__frozen_weights_come_from_the_host),
        cmocka_unit_test(test_in_backward__gradients_take_the_memory_of_two_units),
        cmocka_unit_test(test_in_backward__a_sudden_norm_is_clipped),
        cmocka_unit_test(test_in_backward__shares_are_taken_over),
        cmocka_unit_test(test_in_backward__a_partial_step_keeps_what_came_before),
        cmocka_unit_test(test_in_backward__a_loss_that_is_not_finite_changes_nothing),
    };
    return cmocka_run_group_tests(tests, bench_files_open, bench_files_close);
}
