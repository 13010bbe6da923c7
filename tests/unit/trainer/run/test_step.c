/* SPDX-License-Identifier: Apache-2.0 */
/* test_step.c: steps on an asynchronous device that captures them, compared with the CPU, which
 * runs one after the other. The bits are the same however much is under way, nothing is allocated,
 * and the host waits only for results. */
#include "tests/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/emulated/emulated.h"
#include "tests/unit/proto/seeded_rows.h"
#include "tests/unit/trainer/run/step_bench.h"
#include "trainer/device/graph_replay.h"
#include "trainer/report/profile.h"
#include "trainer/run/step.h"

enum { RESULTS = 6 };

typedef struct outcome {
    double loss[STEPS], norm[STEPS], aux[STEPS];
    char cursor[STEPS][32];
    hash128 experts[STEPS]; /* token copies per expert in each step */
    double *values;         /* all parameters, heap */
    int64_t count;
} outcome;

static void tell_outcome(bench *setup, outcome *out)
{
    step_report report;
    assert_ok(step_wait(&setup->run, &report));
    int64_t i = report.step - 1;
    assert_in_range(i, 0, STEPS - 1);
    out->loss[i] = report.loss;
    out->norm[i] = report.grad_norm;
    out->aux[i] = report.aux;
    snprintf(out->cursor[i], sizeof out->cursor[i], "%s", report.cursor);
    assert_non_null(report.expert_count);
    const text_dims *dims = &setup->run.dims.text;
    out->experts[i] = hash_bytes(report.expert_count, (size_t)(dims->layers * dims->experts) *
                                                          sizeof *report.expert_count);
    assert_int_equal(report.documents, ACCUMULATION * LOCAL * 2);
    assert_int_equal(report.n_samples, report.documents);
    assert_int_equal(report.pairs, report.documents); /* every document has a target */
    assert_int_equal(report.row_capacity, ACCUMULATION * LOCAL * SEQ_LEN);
}

static void read_values(bench *setup, outcome *out)
{
    const params *registry = setup->run.params;
    out->values = calloc((size_t)registry->total, sizeof *out->values);
    assert_non_null(out->values);
    for (int64_t i = 0; i < registry->count; i++) {
        assert_ok(params_read(registry->list[i].value, setup->run.stream, 0,
                              registry->list[i].count, out->values + out->count));
        out->count += registry->list[i].count;
    }
}

/* Runs all steps, with as many under way as the device allows. `counts` gets what the device
 * counted from step `steady` on. */
static void run_training(bench *setup, outcome *out, int64_t steady, device_counts *counts)
{
    session *run = &setup->run;
    device_counts before = {0};
    *out = (outcome){0};
    int64_t told = 0;
    for (int64_t step = 1; step <= STEPS; step++) {
        if (step == steady)
            before = run->device->counts;
        assert_ok(step_queue(run, step));
        if (step_under_way(run) > run->device->backend->ahead) {
            tell_outcome(setup, out);
            told++;
        }
    }
    device_counts now = run->device->counts;
    *counts = (device_counts){now.allocations - before.allocations, now.waits - before.waits,
                              now.event_waits - before.event_waits, now.captures - before.captures};
    for (; told < STEPS; told++)
        tell_outcome(setup, out);
    assert_int_equal(step_under_way(run), 0);
    read_values(setup, out);
}

static void expect_same(const outcome *first, const outcome *second)
{
    for (int i = 0; i < STEPS; i++) {
        assert_true(first->loss[i] == second->loss[i]);
        assert_true(first->norm[i] == second->norm[i]);
        assert_true(first->aux[i] == second->aux[i]);
        assert_string_equal(first->cursor[i], second->cursor[i]);
        assert_true(hash_equal(first->experts[i], second->experts[i]));
    }
    assert_int_equal(first->count, second->count);
    assert_memory_equal(first->values, second->values,
                        (size_t)first->count * sizeof *first->values);
}

static void plain(const char *recording, const bucket_list *list, outcome *out)
{
    bench setup;
    device_counts counts;
    bench_open(&setup, recording, -1, "none", list);
    run_training(&setup, out, 2, &counts);
    assert_int_equal(counts.allocations, 0);
    assert_int_equal(counts.waits, 0);
    assert_int_equal(counts.event_waits, (STEPS - 1) * (1 + ACCUMULATION));
    session_close(&setup.run);
    assert_true(out->loss[0] != out->loss[1] && out->norm[0] > 0 && out->aux[0] > 0);
    assert_false(hash_equal(out->experts[0], out->experts[1]));
}

typedef struct files {
    fixture setup;
    char *folder, *recording;
    outcome want;     /* on the CPU, one step after the other */
    outcome bucketed; /* the same in buckets */
} files;

static int set_up(void **state)
{
    files *paths = calloc(1, sizeof *paths);
    model_dims dims;
    assert_ok(dims_preset("debug", &dims));
    fixture_open(&paths->setup, &dims);
    paths->folder = harness_temp();
    paths->recording = bench_record(&paths->setup, paths->folder);
    plain(paths->recording, &bench_no_buckets, &paths->want);
    plain(paths->recording, &bench_buckets, &paths->bucketed);
    *state = paths;
    return 0;
}

static int tear_down(void **state)
{
    files *paths = *state;
    fixture_close(&paths->setup);
    harness_remove(&paths->folder);
    free(paths->recording);
    free(paths->want.values);
    free(paths->bucketed.values);
    free(paths);
    return 0;
}

static void check_in(const bucket_list *list, const outcome *want, const char *recording, int ahead,
                     const char *scope, int64_t captures)
{
    bench setup;
    outcome got;
    device_counts all, steady;
    bench_open(&setup, recording, ahead, scope, list);
    run_training(&setup, &got, 1, &all);
    assert_int_equal(all.captures, captures);
    expect_same(want, &got);
    session_close(&setup.run);
    free(got.values);
    /* Again, counting only after every kind of batch has come twice. */
    enum { STEADY = STEPS - 1 };
    bench_open(&setup, recording, ahead, scope, list);
    run_training(&setup, &got, STEADY, &steady);
    assert_int_equal(steady.allocations, 0);
    assert_int_equal(steady.waits, 0);
    assert_int_equal(steady.captures, 0);
    /* One wait per step that is reported, and one per batch, for a copy that ended long ago. */
    int64_t steps = STEPS - STEADY + 1;
    assert_int_equal(steady.event_waits, steps * (1 + ACCUMULATION));
    expect_same(want, &got);
    session_close(&setup.run);
    free(got.values);
}

static void check_unbucketed(const files *paths, int ahead, const char *scope, int64_t captures)
{
    check_in(&bench_no_buckets, &paths->want, paths->recording, ahead, scope, captures);
}

static void test_step__late_device(void **state)
{
    check_unbucketed(*state, 0, "none", 0);
}

static void test_step__one_under_way(void **state)
{
    check_unbucketed(*state, 1, "none", 0);
}

/* Captures: batches with and without video, for each buffer, and the update. */
static void test_step__captured(void **state)
{
    check_unbucketed(*state, 0, "step", 3);
}

static void test_step__captured_and_under_way(void **state)
{
    check_unbucketed(*state, 1, "step", 5);
}

/* Captures: each bucket once, with and without video, for each buffer, and the update. */
static void test_step__buckets_captured(void **state)
{
    const files *paths = *state;
    check_in(&bench_buckets, &paths->bucketed, paths->recording, 0, "step", 4);
    check_in(&bench_buckets, &paths->bucketed, paths->recording, 1, "step", 7);
}

/* Forward and backward of each piece, for batches with and without video, with one buffer. The
 * pieces: attention, router and experts of a layer; embedding, blocks and mergers of the tower. */
static void test_step__pieces_captured(void **state)
{
    model_dims dims;
    assert_ok(dims_preset("debug", &dims));
    int layers = (int)dims.text.layers,
        tower = 1 + (int)dims.vision.depth + 1 + dims.vision.n_deepstack;
    int moe = 0;
    for (int layer = 0; layer < layers; layer++)
        moe += dims_layer_is_moe(&dims, layer);
    check_unbucketed(*state, 0, "attn", 2 * 2 * layers);
    check_unbucketed(*state, 0, "router,experts", 2 * 2 * 2 * moe);
    check_unbucketed(*state, 1, "attn, vision", 2 * 2 * 2 * (layers + tower));
}

/* The row's first document becomes the prefix of the others. */
static row tree_of(fixture *setup, const document *docs)
{
    row packed = fixture_row(setup, docs, 3, false);
    row_make_prefix(&packed, &setup->rows);
    assert_ok(row_check(&packed, "tree"));
    return packed;
}

/* Rows whose documents share a prefix, in batches with and without such rows and with a video.
 * Captures: each of the three kinds, for each buffer, and the update; or their attention, forward
 * and backward. */
static void test_step__prefixes_captured(void **state)
{
    files *paths = *state;
    fixture *setup = &paths->setup;
    static const document trees[][3] = {{{"4 1x4x6 3", 7}, {"5", 8}, {"8", 9}},
                                        {{"30", 17}, {"9", 18}, {"11", 19}},
                                        {{"3 v2x4x4 2 + 2", 27}, {"6", 28}, {"5", 29}}};
    static const document plain_rows[][2] = {
        {{"20", 41}, {"12", 42}}, {{"4 1x4x4 9", 51}, {"7", 52}}, {{"12", 61}, {"5 1x6x6 5", 62}}};
    const row rows[ROWS] = {tree_of(setup, trees[0]),
                            tree_of(setup, trees[1]),
                            fixture_row(setup, plain_rows[0], 2, false),
                            fixture_row(setup, plain_rows[1], 2, false),
                            fixture_row(setup, plain_rows[2], 2, false),
                            tree_of(setup, trees[2])};
    char *folder = harness_temp(), *recording = bench_record_rows(rows, ROWS, folder);
    outcome want;
    plain(recording, &bench_no_buckets, &want);
    check_in(&bench_no_buckets, &want, recording, 0, "step", 4);
    check_in(&bench_no_buckets, &want, recording, 0, "attn", 3 * 2 * setup->dims.text.layers);
    free(want.values);
    plain(recording, &bench_buckets, &want);
    check_in(&bench_buckets, &want, recording, 1, "step", 7);
    free(want.values);
    free(recording);
    harness_remove(&folder);
}

/* Padding does not change the result: with other capacities the training is the same up to
 * rounding. */
static void test_step__buckets_change_nothing(void **state)
{
    const files *paths = *state;
    for (int i = 0; i < STEPS; i++) {
        assert_true(fabs(paths->want.loss[i] - paths->bucketed.loss[i]) < 1e-5);
        assert_true(fabs(paths->want.norm[i] - paths->bucketed.norm[i]) <
                    1e-4 * paths->want.norm[i]);
    }
}

/* There are rows for one and a half steps. Neither the second step nor the ones queued after it
 * change anything. */
static void check_void(const files *paths, int ahead, const char *scope)
{
    bench setup;
    step_report report;
    outcome after_one = {0}, after_void = {0};
    bench_open(&setup, paths->recording, ahead, scope, &bench_no_buckets);
    session *run = &setup.run;
    receiver_close(&run->train);
    receiver_options half = {
        .replay.path = paths->recording, .replay.loops = 1, .slots = 2 * LOCAL};
    assert_ok(receiver_open(&half, &run->train));
    assert_ok(step_run(run, 1, &report));
    assert_true(report.loss == paths->want.loss[0]);
    assert_false(step_is_void(run));
    read_values(&setup, &after_one);
    for (int64_t step = 2; step <= 2 + (ahead > 0); step++)
        assert_ok(step_queue(run, step));
    assert_fails(ST_PROTOCOL, step_wait(run, &report), "ended in the middle of step 2");
    assert_true(step_is_void(run) && report.skipped);
    while (step_under_way(run) > 0)
        assert_fails(ST_PROTOCOL, step_wait(run, &report), "ended in the middle of step 2");
    assert_fails(ST_PROTOCOL, step_run(run, 4, &report), "ended in the middle of step 2");
    read_values(&setup, &after_void);
    assert_memory_equal(after_one.values, after_void.values,
                        (size_t)after_one.count * sizeof *after_one.values);
    free(after_one.values);
    free(after_void.values);
    session_close(run);
}

static void test_step__without_rows_is_void(void **state)
{
    check_void(*state, -1, "none");
    check_void(*state, 0, "step");
    check_void(*state, 1, "none");
    check_void(*state, 1, "step");
}

static void test_step__refuses_what_a_graph_cannot_hold(void **state)
{
    (void)state;
    device *dev;
    stream *queue;
    void *memory, *pinned;
    char pageable[8] = {0};
    assert_ok(emulated_open(1, true, &dev));
    assert_ok(dev->backend->stream_new(dev, &queue));
    assert_ok(dev->backend->alloc(dev, 8, &memory));
    assert_ok(dev->backend->alloc_host(dev, 8, &pinned));
    assert_ok(dev->backend->capture_begin(queue));
    assert_ok(dev->backend->to_device(queue, memory, pinned, 8));
    assert_fails(ST_BAD_DEVICE, dev->backend->to_device(queue, memory, pageable, 8), "not pinned");
    assert_fails(ST_BAD_DEVICE, dev->backend->wait(queue), "waiting");
    assert_fails(ST_BAD_DEVICE, dev->backend->alloc(dev, 8, &memory), "allocation");
    graph *recorded;
    assert_ok(dev->backend->capture_end(queue, &recorded));
    dev->backend->graph_free(&recorded);
    dev->backend->release(dev, memory);
    dev->backend->release_host(dev, pinned);
    dev->backend->stream_free(&queue);
    device_close(&dev);
}

/* By a clock that advances with each call and never else: each call belongs to one kind, and the
 * kinds add up to the step to the nanosecond. */
static void test_profile__adds_up(void **state)
{
    const files *paths = *state;
    bench setup;
    profile *profiler;
    bench_open(&setup, paths->recording, 0, "none", &bench_no_buckets);
    assert_ok(profile_new(setup.run.stream, &profiler));
    for (int64_t step = 1; step <= 3; step++) {
        step_report report;
        assert_ok(profile_begin(profiler));
        assert_ok(step_run(&setup.run, step, &report));
        assert_ok(profile_end(profiler, 0));
    }
    const profile_sums *sums = profile_read(profiler);
    int64_t all = 0, work = 0;
    for (int k = 0; k < PROFILE_KINDS; k++) {
        all += sums->ns[k];
        work += k == PROFILE_IDLE ? 0 : sums->ns[k];
    }
    assert_int_equal(sums->steps, 3);
    assert_int_equal(all, sums->total_ns);
    assert_int_equal(work, sums->calls * 1000);
    /* The idle time is that of reading results back to the host, a few in each step. */
    assert_int_equal(sums->ns[PROFILE_IDLE], 3 * RESULTS * 1000);
    for (int k = PROFILE_VISION; k <= PROFILE_OPTIMIZER; k++)
        assert_true(sums->ns[k] > 0);
    assert_int_equal(sums->ns[PROFILE_COLLECTIVES] + sums->ns[PROFILE_WAIT], 0);
    profile_free(&profiler);
    session_close(&setup.run);
}

/* A picture with two questions, of which one is without targets, as quarantine leaves it. */
static row shared_row(fixture *setup)
{
    static const document docs[] = {{"4 1x4x6 3", 7}, {"5", 8}, {"8", 9}};
    row packed = fixture_row(setup, docs, 3, false);
    assert_ok(arena_calloc(&setup->rows, 3, sizeof(int32_t), (void **)&packed.doc_prefix));
    packed.doc_prefix[0] = packed.doc_part[0] = -1;
    packed.doc_sample_id[0] = packed.doc_sample_id[1];
    for (int64_t token = 0; token < packed.n_tokens; token++)
        packed.labels[token] = NO_LABEL;
    packed.labels[packed.cu_seqlens[2] - 1] = packed.input_ids[packed.cu_seqlens[2] - 1];
    assert_ok(row_check(&packed, "shared"));
    return packed;
}

/* A prefix is no sample and no pair, and what it takes is counted once. The head is counted at the
 * one target of a row. */
static void test_step__counts_a_prefix_once(void **state)
{
    files *paths = *state;
    enum { IN_STEP = ACCUMULATION * LOCAL };
    char *folder = harness_temp();
    const row one = shared_row(&paths->setup), rows[IN_STEP] = {one, one, one, one};
    char *recording = bench_record_rows(rows, IN_STEP, folder);
    const int64_t prefix = one.cu_seqlens[1];
    int64_t pairs = document_pairs(prefix);
    step_report report;
    flops want;
    bench setup;
    for (int64_t doc = 1; doc < 3; doc++) {
        const int64_t own = one.cu_seqlens[doc + 1] - one.cu_seqlens[doc];
        pairs += document_pairs(own) + own * prefix;
    }
    bench_open(&setup, recording, -1, "none", &bench_no_buckets);
    assert_ok(step_run(&setup.run, 1, &report));
    assert_int_equal(report.documents, 2 * IN_STEP);
    assert_int_equal(report.n_samples, 2 * IN_STEP);
    assert_int_equal(report.pairs, IN_STEP);
    assert_int_equal(report.images, IN_STEP);
    assert_int_equal(report.tokens, IN_STEP * one.n_tokens);
    assert_true(report.sample[0] == one.doc_sample_id[1]);
    assert_true(report.sample[1] == one.doc_sample_id[2]);
    dims_flops(&setup.run.dims, one.n_tokens, 1, pairs, one.grid_thw, one.n_items, &want);
    assert_int_equal(report.flops.forward, IN_STEP * want.forward);
    session_close(&setup.run);
    free(recording);
    harness_remove(&folder);
}

static void test_replay__scope(void **state)
{
    (void)state;
    device *dev;
    stream *queue;
    assert_ok(emulated_open(0, true, &dev));
    assert_ok(dev->backend->stream_new(dev, &queue));
    const char *good[] = {"off", "step", "attn", "attn,router, experts,vision", ""};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_ok(graph_replay_new(queue, good[i]));
        graph_replay_free(queue);
    }
    assert_fails(ST_CONFIG, graph_replay_new(queue, "attn,moe"), "\"moe\" is not known");
    assert_fails(ST_CONFIG, graph_replay_new(queue, "step,attn"), "\"step\" is not known");
    dev->backend->stream_free(&queue);
    device_close(&dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_step__late_device),
        cmocka_unit_test(test_step__one_under_way),
        cmocka_unit_test(test_step__captured),
        cmocka_unit_test(test_step__captured_and_under_way),
        cmocka_unit_test(test_step__buckets_captured),
        cmocka_unit_test(test_step__prefixes_captured),
        cmocka_unit_test(test_step__buckets_change_nothing),
        cmocka_unit_test(test_step__refuses_what_a_graph_cannot_hold),
        cmocka_unit_test(test_step__pieces_captured),
        cmocka_unit_test(test_profile__adds_up),
        cmocka_unit_test(test_step__without_rows_is_void),
        cmocka_unit_test(test_step__counts_a_prefix_once),
        cmocka_unit_test(test_replay__scope),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
