/* test_step.c: steps on an asynchronous device that captures them, against the CPU run one by one:
 * the same bits, whatever is under way; nothing allocated and nothing waited for but what is told.
 */
#include "tests/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf.h"
#include "proto/record.h"
#include "tests/emulated/emulated.h"
#include "tests/unit/trainer/model/fixture.h"
#include "trainer/device/replay.h"
#include "trainer/report/profile.h"
#include "trainer/step.h"

enum { STEPS = 9, ACCUMULATION = 2, LOCAL = 2, SEQ_LEN = 96, PATCHES = 160, ROWS = 6, RESULTS = 5 };

/* Rows of text, images, a video, no targets; each step gets others. */
static const document contents[ROWS][2] = {{{"4 1x4x6 3 1x6x4 2", 11}, {"10", 33}},
                                           {{"3 v2x4x4 2 + 2", 22}, {"7", 23}},
                                           {{"20", 41}, {"30", 42}},
                                           {{"4 1x4x4 9", 51}, {"2 1x4x6 6", 52}},
                                           {{"12", 61}, {"5 1x6x6 5", 62}},
                                           {{"25", 71}, {"8", 72}}};

static char *record(fixture *f, const char *folder)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/rows.rec", folder);
    record_writer *w;
    codec *c;
    wire_msg *m;
    assert_ok(record_create(path, "{}", &w));
    assert_ok(codec_new(&c));
    assert_ok(wire_msg_new(&m));
    for (int i = 0; i < ROWS; i++) {
        row r = fixture_row(f, contents[i], 2, false);
        char cursor[32];
        snprintf(cursor, sizeof cursor, "{\"row\":%d}", i);
        r.cursor = cursor;
        r.quarantine = "[]";
        wire_msg_clear(m);
        assert_ok(codec_encode(c, &r, (uint64_t)i, IMAGE_FILTER_NONE, IMAGE_CODEC_NONE, m));
        assert_ok(record_add(w, m));
    }
    assert_ok(record_finish(&w));
    wire_msg_free(&m);
    codec_free(&c);
    return strdup(path);
}

/* What the daemon would name: the first holds the batches of rows 0, 1 and 4, 5, of which one has
 * video; rows 2 and 3 need the second. */
static const bucket_list buckets = {
    .cap = {{.tokens = 64,
             .docs = 4,
             .patches = 80,
             .items = 4,
             .frames = 5,
             .targets = 64,
             .longest = 25,
             .frame = 36},
            {.tokens = LOCAL * SEQ_LEN,
             .docs = 6,
             .patches = LOCAL * PATCHES,
             .items = 8,
             .frames = 8,
             .targets = 150,
             .longest = 40,
             .frame = 48}},
    .n = 2,
};

typedef struct bench {
    conf c;
    session s;
    backend_vtable fixed; /* the CPU on capacities, as the emulated device */
} bench;

static void open_device(bench *b, int ahead, bool graphs)
{
    if (ahead >= 0) {
        assert_ok(emulated_open(ahead, graphs, &b->s.device));
        return;
    }
    assert_ok(device_open(BACKEND_CPU, &(device_options){.threads = 2}, &b->s.device));
    b->fixed = *b->s.device->v;
    b->fixed.fixed_shapes = true;
    b->s.device->v = &b->fixed;
}

/* ahead -1: the CPU, one step after the other. */
static void open_bench(bench *b, const char *recording, int ahead, const char *scope,
                       const bucket_list *list)
{
    *b = (bench){0};
    session *s = &b->s;
    conf *c = &b->c;
    s->buckets = *list;
    s->seq_len = SEQ_LEN;
    c->training_local_batch_size = LOCAL;
    c->optimizer_beta1 = 0.9;
    c->optimizer_beta2 = 0.95;
    c->optimizer_eps = 1e-8;
    c->optimizer_weight_decay = 0.1;
    c->training_max_norm = 1.0;
    s->conf = c;
    mesh_alone(&s->mesh);
    s->accumulation = ACCUMULATION;
    s->schedule = (schedule){.peak = 1e-3, .steps = STEPS, .warmup_steps = 2, .decay_ratio = 1.0};
    open_device(b, ahead, strcmp(scope, "none") != 0);
    assert_ok(s->device->v->stream_new(s->device, &s->stream));
    assert_ok(dims_preset("debug", &s->dims));
    assert_ok(params_new(&s->dims, &s->params));
    assert_ok(params_alloc(s->params, s->stream, true));
    assert_ok(params_init(s->params, s->stream, 3));
    groups_share(s->params, &s->dims, &s->share);
    s->cap = (batch_caps){.tokens = LOCAL * SEQ_LEN,
                          .docs = 8,
                          .patches = LOCAL * PATCHES,
                          .items = 16,
                          .frames = 16,
                          .targets = LOCAL * SEQ_LEN};
    const backend_vtable *v = s->device->v;
    assert_ok(v->alloc(s->device, sizeof(double), (void **)&s->sums.loss));
    assert_ok(v->alloc(s->device, sizeof(double), (void **)&s->sums.weight));
    assert_ok(v->alloc(s->device, sizeof(double), &s->sums.aux));
    model_options o = {.cap = s->cap, .training = true, .router_aux_coef = 0.01};
    assert_ok(model_new(s->stream, &s->dims, s->params, &o, &s->model));
    lane_options l = {.cap = s->cap,
                      .buckets = s->buckets.cap,
                      .n_buckets = s->buckets.n,
                      .aux_coefficient = 0.01};
    assert_ok(lane_new(s->stream, &s->dims, &l, &s->lane));
    s->stager = lane_stager(s->lane);
    s->got = calloc(LOCAL, sizeof *s->got);
    s->rows = calloc(LOCAL, sizeof *s->rows);
    assert_ok(optimizer_new(c, s->params, s->stream, &s->optimizer));
    assert_ok(replay_new(s->stream, strcmp(scope, "none") == 0 ? "off" : scope));
    assert_ok(step_open(s));
    receiver_options r = {.replay.path = recording, .replay.loops = 0, .slots = 2 * LOCAL};
    assert_ok(receiver_open(&r, &s->train));
}

typedef struct outcome {
    double loss[STEPS], norm[STEPS], aux[STEPS];
    char cursor[STEPS][32];
    double *values; /* all parameters, heap */
    int64_t n;
} outcome;

static void tell(bench *b, outcome *out)
{
    step_report r;
    assert_ok(step_told(&b->s, &r));
    int64_t i = r.step - 1;
    assert_in_range(i, 0, STEPS - 1);
    out->loss[i] = r.loss;
    out->norm[i] = r.grad_norm;
    out->aux[i] = r.aux;
    snprintf(out->cursor[i], sizeof out->cursor[i], "%s", r.cursor);
    assert_int_equal(r.documents, ACCUMULATION * LOCAL * 2);
    assert_int_equal(r.n_samples, r.documents);
    assert_int_equal(r.row_capacity, ACCUMULATION * LOCAL * SEQ_LEN);
}

static void read_values(bench *b, outcome *out)
{
    const params *p = b->s.params;
    out->values = calloc((size_t)p->total, sizeof *out->values);
    assert_non_null(out->values);
    for (int64_t i = 0; i < p->n; i++) {
        assert_ok(
            params_read(p->list[i].value, b->s.stream, 0, p->list[i].count, out->values + out->n));
        out->n += p->list[i].count;
    }
}

/* All steps, as many under way as the device allows. counts: of the device, from step `steady` on,
 * per step. */
static void run(bench *b, outcome *out, int64_t steady, device_counts *counts)
{
    session *s = &b->s;
    device_counts before = {0};
    *out = (outcome){0};
    int64_t told = 0;
    for (int64_t step = 1; step <= STEPS; step++) {
        if (step == steady)
            before = s->device->counts;
        assert_ok(step_queue(s, step));
        if (step_under_way(s) > s->device->v->ahead) {
            tell(b, out);
            told++;
        }
    }
    device_counts now = s->device->counts;
    *counts = (device_counts){now.allocations - before.allocations, now.waits - before.waits,
                              now.event_waits - before.event_waits, now.captures - before.captures};
    for (; told < STEPS; told++)
        tell(b, out);
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
    }
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->values, b->values, (size_t)a->n * sizeof *a->values);
}

static void plain(const char *recording, const bucket_list *list, outcome *out)
{
    bench b;
    device_counts counts;
    open_bench(&b, recording, -1, "none", list);
    run(&b, out, 2, &counts);
    assert_int_equal(counts.allocations, 0);
    assert_int_equal(counts.waits, 0);
    assert_int_equal(counts.event_waits, (STEPS - 1) * (1 + ACCUMULATION));
    session_close(&b.s);
    assert_true(out->loss[0] != out->loss[1] && out->norm[0] > 0 && out->aux[0] > 0);
}

typedef struct files {
    fixture f;
    char *folder, *recording;
    outcome want;     /* of the CPU, one step after the other */
    outcome bucketed; /* the same, in buckets */
} files;

static const bucket_list no_buckets;

static int set_up(void **state)
{
    files *x = calloc(1, sizeof *x);
    model_dims d;
    assert_ok(dims_preset("debug", &d));
    fixture_open(&x->f, &d);
    x->folder = harness_temp();
    x->recording = record(&x->f, x->folder);
    plain(x->recording, &no_buckets, &x->want);
    plain(x->recording, &buckets, &x->bucketed);
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
    open_bench(&b, x->recording, ahead, scope, list);
    run(&b, &got, 1, &all);
    assert_int_equal(all.captures, captures);
    expect_same(want, &got);
    session_close(&b.s);
    free(got.values);
    /* Again, counting behind the steps in which each kind of batch came twice. */
    enum { STEADY = STEPS - 1 };
    open_bench(&b, x->recording, ahead, scope, list);
    run(&b, &got, STEADY, &steady);
    assert_int_equal(steady.allocations, 0);
    assert_int_equal(steady.waits, 0);
    assert_int_equal(steady.captures, 0);
    /* One per step that is told; one per batch, for a copy that ended long ago. */
    int64_t steps = STEPS - STEADY + 1;
    assert_int_equal(steady.event_waits, steps * (1 + ACCUMULATION));
    expect_same(want, &got);
    session_close(&b.s);
    free(got.values);
}

static void check(const files *x, int ahead, const char *scope, int64_t captures)
{
    check_in(&no_buckets, &x->want, x, ahead, scope, captures);
}

static void test_step__late_device(void **state)
{
    check(*state, 0, "none", 0);
}

static void test_step__one_under_way(void **state)
{
    check(*state, 1, "none", 0);
}

/* Batches with and without video, from each buffer; and the update. */
static void test_step__captured(void **state)
{
    check(*state, 0, "step", 3);
}

static void test_step__captured_and_under_way(void **state)
{
    check(*state, 1, "step", 5);
}

/* Each bucket once, with and without video, from each buffer; and the update. */
static void test_step__buckets_captured(void **state)
{
    const files *x = *state;
    check_in(&buckets, &x->bucketed, x, 0, "step", 4);
    check_in(&buckets, &x->bucketed, x, 1, "step", 7);
}

/* Forward and backward of each piece, for batches with and without video (one buffer): attention
 * and router and experts of a layer, embedding, blocks and mergers of the tower. */
static void test_step__pieces_captured(void **state)
{
    model_dims d;
    assert_ok(dims_preset("debug", &d));
    int layers = (int)d.text.layers, tower = 1 + (int)d.vision.depth + 1 + d.vision.n_deepstack;
    int moe = 0;
    for (int l = 0; l < layers; l++)
        moe += dims_layer_is_moe(&d, l);
    check(*state, 0, "attn", 2 * 2 * layers);
    check(*state, 0, "router,experts", 2 * 2 * 2 * moe);
    check(*state, 1, "attn, vision", 2 * 2 * 2 * (layers + tower));
}

/* Padding is no part of the result: other capacities, the same training but for rounding. */
static void test_step__buckets_change_nothing(void **state)
{
    const files *x = *state;
    for (int i = 0; i < STEPS; i++) {
        assert_true(fabs(x->want.loss[i] - x->bucketed.loss[i]) < 1e-5);
        assert_true(fabs(x->want.norm[i] - x->bucketed.norm[i]) < 1e-4 * x->want.norm[i]);
    }
}

/* Rows for one step and a half: the second, and what is queued behind it, change nothing. */
static void check_void(const files *x, int ahead, const char *scope)
{
    bench b;
    step_report r;
    outcome after_one = {0}, after_void = {0};
    open_bench(&b, x->recording, ahead, scope, &no_buckets);
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
    assert_fails(ST_PROTOCOL, step_told(s, &r), "ended inside step 2");
    assert_true(step_is_void(s) && r.skipped);
    while (step_under_way(s) > 0)
        assert_fails(ST_PROTOCOL, step_told(s, &r), "ended inside step 2");
    assert_fails(ST_PROTOCOL, step_run(s, 4, &r), "ended inside step 2");
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

static void test_step__refuses_what_a_graph_can_not_hold(void **state)
{
    (void)state;
    device *d;
    stream *s;
    void *p, *pinned;
    char pageable[8] = {0};
    assert_ok(emulated_open(1, true, &d));
    assert_ok(d->v->stream_new(d, &s));
    assert_ok(d->v->alloc(d, 8, &p));
    assert_ok(d->v->alloc_host(d, 8, &pinned));
    assert_ok(d->v->capture_begin(s));
    assert_ok(d->v->to_device(s, p, pinned, 8));
    assert_fails(ST_BAD_DEVICE, d->v->to_device(s, p, pageable, 8), "not pinned");
    assert_fails(ST_BAD_DEVICE, d->v->wait(s), "waiting");
    assert_fails(ST_BAD_DEVICE, d->v->alloc(d, 8, &p), "allocation");
    graph *g;
    assert_ok(d->v->capture_end(s, &g));
    d->v->graph_free(&g);
    d->v->release(d, p);
    d->v->release_host(d, pinned);
    d->v->stream_free(&s);
    device_close(&d);
}

/* By a clock that counts calls and nothing else: each call is one kind's, none twice, and the kinds
 * add up to the step to the nanosecond. */
static void test_profile__adds_up(void **state)
{
    const files *x = *state;
    bench b;
    profile *p;
    open_bench(&b, x->recording, 0, "none", &no_buckets);
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
    /* Idle is what came back to the host: some results of each step. */
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
    assert_ok(d->v->stream_new(d, &s));
    const char *good[] = {"off", "step", "attn", "attn,router, experts,vision", ""};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_ok(replay_new(s, good[i]));
        replay_free(s);
    }
    assert_fails(ST_CONFIG, replay_new(s, "attn,moe"), "\"moe\" is none of");
    assert_fails(ST_CONFIG, replay_new(s, "step,attn"), "\"step\" is none of");
    d->v->stream_free(&s);
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
        cmocka_unit_test(test_step__refuses_what_a_graph_can_not_hold),
        cmocka_unit_test(test_step__pieces_captured),
        cmocka_unit_test(test_profile__adds_up),
        cmocka_unit_test(test_step__without_rows_is_void),
        cmocka_unit_test(test_replay__scope),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
