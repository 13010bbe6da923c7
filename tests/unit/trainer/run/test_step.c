/* test_step.c: steps on an asynchronous device that captures them, compared with the CPU, which
 * runs one after the other. The bits are the same however much is under way, nothing is allocated,
 * and the host waits only for results. */
#include "tests/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/emulated/emulated.h"
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
    int64_t n;
} outcome;

static void tell_outcome(bench *b, outcome *out)
{
    step_report r;
    assert_ok(step_told(&b->s, &r));
    int64_t i = r.step - 1;
    assert_in_range(i, 0, STEPS - 1);
    out->loss[i] = r.loss;
    out->norm[i] = r.grad_norm;
    out->aux[i] = r.aux;
    snprintf(out->cursor[i], sizeof out->cursor[i], "%s", r.cursor);
    assert_non_null(r.expert_count);
    const text_dims *t = &b->s.dims.text;
    out->experts[i] =
        hash_bytes(r.expert_count, (size_t)(t->layers * t->experts) * sizeof *r.expert_count);
    assert_int_equal(r.documents, ACCUMULATION * LOCAL * 2);
    assert_int_equal(r.n_samples, r.documents);
    assert_int_equal(r.row_capacity, ACCUMULATION * LOCAL * SEQ_LEN);
}

static void read_values(bench *b, outcome *out)
{
    const params *p = b->s.params;
    out->values = calloc((size_t)p->total, sizeof *out->values);
    assert_non_null(out->values);
    for (int64_t i = 0; i < p->count; i++) {
        assert_ok(
            params_read(p->list[i].value, b->s.stream, 0, p->list[i].count, out->values + out->n));
        out->n += p->list[i].count;
    }
}

/* Runs all steps, with as many under way as the device allows. `counts` gets what the device
 * counted from step `steady` on. */
static void run_training(bench *b, outcome *out, int64_t steady, device_counts *counts)
{
    session *s = &b->s;
    device_counts before = {0};
    *out = (outcome){0};
    int64_t told = 0;
    for (int64_t step = 1; step <= STEPS; step++) {
        if (step == steady)
            before = s->device->counts;
        assert_ok(step_queue(s, step));
        if (step_under_way(s) > s->device->backend->ahead) {
            tell_outcome(b, out);
            told++;
        }
    }
    device_counts now = s->device->counts;
    *counts = (device_counts){now.allocations - before.allocations, now.waits - before.waits,
                              now.event_waits - before.event_waits, now.captures - before.captures};
    for (; told < STEPS; told++)
        tell_outcome(b, out);
    assert_int_equal(step_under_way(s), 0);
    read_values(b, out);
}

static void expect_same(const outcome *a, const outcome *b)
{
    for (int i = 0; i < STEPS; i++) {
        assert_true(a->loss[i] == b->loss[i]);
        assert_true(a->norm[i] == b->norm[i]);
        assert_true(a->aux[i] == b->aux[i]);
        assert_string_equal(a->cursor[i], b->cursor[i]);
        assert_true(hash_equal(a->experts[i], b->experts[i]));
    }
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->values, b->values, (size_t)a->n * sizeof *a->values);
}

static void plain(const char *recording, const bucket_list *list, outcome *out)
{
    bench b;
    device_counts counts;
    bench_open(&b, recording, -1, "none", list);
    run_training(&b, out, 2, &counts);
    assert_int_equal(counts.allocations, 0);
    assert_int_equal(counts.waits, 0);
    assert_int_equal(counts.event_waits, (STEPS - 1) * (1 + ACCUMULATION));
    session_close(&b.s);
    assert_true(out->loss[0] != out->loss[1] && out->norm[0] > 0 && out->aux[0] > 0);
    assert_false(hash_equal(out->experts[0], out->experts[1]));
}

typedef struct files {
    fixture f;
    char *folder, *recording;
    outcome want;     /* on the CPU, one step after the other */
    outcome bucketed; /* the same in buckets */
} files;

static int set_up(void **state)
{
    files *x = calloc(1, sizeof *x);
    model_dims d;
    assert_ok(dims_preset("debug", &d));
    fixture_open(&x->f, &d);
    x->folder = harness_temp();
    x->recording = bench_record(&x->f, x->folder);
    plain(x->recording, &bench_no_buckets, &x->want);
    plain(x->recording, &bench_buckets, &x->bucketed);
    *state = x;
    return 0;
}

static int tear_down(void **state)
{
    files *x = *state;
    fixture_close(&x->f);
    harness_remove(&x->folder);
    free(x->recording);
    free(x->want.values);
    free(x->bucketed.values);
    free(x);
    return 0;
}

static void check_in(const bucket_list *list, const outcome *want, const files *x, int ahead,
                     const char *scope, int64_t captures)
{
    bench b;
    outcome got;
    device_counts all, steady;
    bench_open(&b, x->recording, ahead, scope, list);
    run_training(&b, &got, 1, &all);
    assert_int_equal(all.captures, captures);
    expect_same(want, &got);
    session_close(&b.s);
    free(got.values);
    /* Again, counting only after every kind of batch has come twice. */
    enum { STEADY = STEPS - 1 };
    bench_open(&b, x->recording, ahead, scope, list);
    run_training(&b, &got, STEADY, &steady);
    assert_int_equal(steady.allocations, 0);
    assert_int_equal(steady.waits, 0);
    assert_int_equal(steady.captures, 0);
    /* One wait per step that is reported, and one per batch, for a copy that ended long ago. */
    int64_t steps = STEPS - STEADY + 1;
    assert_int_equal(steady.event_waits, steps * (1 + ACCUMULATION));
    expect_same(want, &got);
    session_close(&b.s);
    free(got.values);
}

static void check_unbucketed(const files *x, int ahead, const char *scope, int64_t captures)
{
    check_in(&bench_no_buckets, &x->want, x, ahead, scope, captures);
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
    const files *x = *state;
    check_in(&bench_buckets, &x->bucketed, x, 0, "step", 4);
    check_in(&bench_buckets, &x->bucketed, x, 1, "step", 7);
}

/* Forward and backward of each piece, for batches with and without video, with one buffer. The
 * pieces: attention, router and experts of a layer; embedding, blocks and mergers of the tower. */
static void test_step__pieces_captured(void **state)
{
    model_dims d;
    assert_ok(dims_preset("debug", &d));
    int layers = (int)d.text.layers, tower = 1 + (int)d.vision.depth + 1 + d.vision.n_deepstack;
    int moe = 0;
    for (int l = 0; l < layers; l++)
        moe += dims_layer_is_moe(&d, l);
    check_unbucketed(*state, 0, "attn", 2 * 2 * layers);
    check_unbucketed(*state, 0, "router,experts", 2 * 2 * 2 * moe);
    check_unbucketed(*state, 1, "attn, vision", 2 * 2 * 2 * (layers + tower));
}

/* Padding does not change the result: with other capacities the training is the same up to
 * rounding. */
static void test_step__buckets_change_nothing(void **state)
{
    const files *x = *state;
    for (int i = 0; i < STEPS; i++) {
        assert_true(fabs(x->want.loss[i] - x->bucketed.loss[i]) < 1e-5);
        assert_true(fabs(x->want.norm[i] - x->bucketed.norm[i]) < 1e-4 * x->want.norm[i]);
    }
}

/* There are rows for one and a half steps. Neither the second step nor the ones queued after it
 * change anything. */
static void check_void(const files *x, int ahead, const char *scope)
{
    bench b;
    step_report r;
    outcome after_one = {0}, after_void = {0};
    bench_open(&b, x->recording, ahead, scope, &bench_no_buckets);
    session *s = &b.s;
    receiver_close(&s->train);
    receiver_options half = {.replay.path = x->recording, .replay.loops = 1, .slots = 2 * LOCAL};
    assert_ok(receiver_open(&half, &s->train));
    assert_ok(step_run(s, 1, &r));
    assert_true(r.loss == x->want.loss[0]);
    assert_false(step_is_void(s));
    read_values(&b, &after_one);
    for (int64_t step = 2; step <= 2 + (ahead > 0); step++)
        assert_ok(step_queue(s, step));
    assert_fails(ST_PROTOCOL, step_told(s, &r), "ended in the middle of step 2");
    assert_true(step_is_void(s) && r.skipped);
    while (step_under_way(s) > 0)
        assert_fails(ST_PROTOCOL, step_told(s, &r), "ended in the middle of step 2");
    assert_fails(ST_PROTOCOL, step_run(s, 4, &r), "ended in the middle of step 2");
    read_values(&b, &after_void);
    assert_memory_equal(after_one.values, after_void.values,
                        (size_t)after_one.n * sizeof *after_one.values);
    free(after_one.values);
    free(after_void.values);
    session_close(s);
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
    device *d;
    stream *s;
    void *p, *pinned;
    char pageable[8] = {0};
    assert_ok(emulated_open(1, true, &d));
    assert_ok(d->backend->stream_new(d, &s));
    assert_ok(d->backend->alloc(d, 8, &p));
    assert_ok(d->backend->alloc_host(d, 8, &pinned));
    assert_ok(d->backend->capture_begin(s));
    assert_ok(d->backend->to_device(s, p, pinned, 8));
    assert_fails(ST_BAD_DEVICE, d->backend->to_device(s, p, pageable, 8), "not pinned");
    assert_fails(ST_BAD_DEVICE, d->backend->wait(s), "waiting");
    assert_fails(ST_BAD_DEVICE, d->backend->alloc(d, 8, &p), "allocation");
    graph *g;
    assert_ok(d->backend->capture_end(s, &g));
    d->backend->graph_free(&g);
    d->backend->release(d, p);
    d->backend->release_host(d, pinned);
    d->backend->stream_free(&s);
    device_close(&d);
}

/* By a clock that advances with each call and never else: each call belongs to one kind, and the
 * kinds add up to the step to the nanosecond. */
static void test_profile__adds_up(void **state)
{
    const files *x = *state;
    bench b;
    profile *p;
    bench_open(&b, x->recording, 0, "none", &bench_no_buckets);
    assert_ok(profile_new(b.s.stream, &p));
    for (int64_t step = 1; step <= 3; step++) {
        step_report r;
        assert_ok(profile_begin(p));
        assert_ok(step_run(&b.s, step, &r));
        assert_ok(profile_end(p, 0));
    }
    const profile_sums *sums = profile_read(p);
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
    profile_free(&p);
    session_close(&b.s);
}

static void test_replay__scope(void **state)
{
    (void)state;
    device *d;
    stream *s;
    assert_ok(emulated_open(0, true, &d));
    assert_ok(d->backend->stream_new(d, &s));
    const char *good[] = {"off", "step", "attn", "attn,router, experts,vision", ""};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_ok(graph_replay_new(s, good[i]));
        graph_replay_free(s);
    }
    assert_fails(ST_CONFIG, graph_replay_new(s, "attn,moe"), "\"moe\" is not known");
    assert_fails(ST_CONFIG, graph_replay_new(s, "step,attn"), "\"step\" is not known");
    d->backend->stream_free(&s);
    device_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_step__late_device),
        cmocka_unit_test(test_step__one_under_way),
        cmocka_unit_test(test_step__captured),
        cmocka_unit_test(test_step__captured_and_under_way),
        cmocka_unit_test(test_step__buckets_captured),
        cmocka_unit_test(test_step__buckets_change_nothing),
        cmocka_unit_test(test_step__refuses_what_a_graph_cannot_hold),
        cmocka_unit_test(test_step__pieces_captured),
        cmocka_unit_test(test_profile__adds_up),
        cmocka_unit_test(test_step__without_rows_is_void),
        cmocka_unit_test(test_replay__scope),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
