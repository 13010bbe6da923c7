#include "tests/unit/trainer/run/step_bench.h"

#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/record.h"
#include "tests/emulated/emulated.h"
#include "trainer/device/graph_replay.h"
#include "trainer/ops/open.h"

/* Rows of text, of pictures and with a video; successive steps get different rows. */
static const document contents[ROWS][2] = {{{"4 1x4x6 3 1x6x4 2", 11}, {"10", 33}},
                                           {{"3 v2x4x4 2 + 2", 22}, {"7", 23}},
                                           {{"20", 41}, {"30", 42}},
                                           {{"4 1x4x4 9", 51}, {"2 1x4x6 6", 52}},
                                           {{"12", 61}, {"5 1x6x6 5", 62}},
                                           {{"25", 71}, {"8", 72}}};

char *bench_record(fixture *f, const char *folder)
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

const bucket_list bench_no_buckets;
const bucket_list bench_buckets = {
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
    .count = 2,
};

static void open_device(bench *b, int ahead, bool graphs)
{
    if (ahead >= 0) {
        assert_ok(emulated_open(ahead, graphs, &b->s.device));
        return;
    }
    assert_ok(device_open(BACKEND_CPU, &(device_options){.threads = 2}, &b->s.device));
    b->fixed = *b->s.device->backend;
    b->fixed.fixed_shapes = true;
    b->s.device->backend = &b->fixed;
}

void bench_open(bench *b, const char *recording, int ahead, const char *scope,
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
    assert_ok(s->device->backend->stream_new(s->device, &s->stream));
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
    const backend_vtable *v = s->device->backend;
    assert_ok(v->alloc(s->device, sizeof(double), (void **)&s->sums.loss));
    assert_ok(v->alloc(s->device, sizeof(double), (void **)&s->sums.weight));
    assert_ok(v->alloc(s->device, sizeof(double), &s->sums.aux));
    model_options o = {.cap = s->cap, .training = true, .router_aux_coef = 0.01};
    assert_ok(model_new(s->stream, &s->dims, s->params, &o, &s->model));
    upload_ring_options l = {.cap = s->cap,
                             .buckets = s->buckets.cap,
                             .n_buckets = s->buckets.count,
                             .aux_coefficient = 0.01};
    assert_ok(upload_ring_new(s->stream, &s->dims, &l, &s->upload_ring));
    s->stager = upload_ring_stager(s->upload_ring);
    s->got = calloc(LOCAL, sizeof *s->got);
    s->rows = calloc(LOCAL, sizeof *s->rows);
    assert_ok(optimizer_new(c, s->params, s->stream, &s->optimizer));
    assert_ok(graph_replay_new(s->stream, strcmp(scope, "none") == 0 ? "off" : scope));
    assert_ok(step_open(s));
    receiver_options r = {.replay.path = recording, .replay.loops = 0, .slots = 2 * LOCAL};
    assert_ok(receiver_open(&r, &s->train));
}
