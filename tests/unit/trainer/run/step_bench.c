/* SPDX-License-Identifier: Apache-2.0 */
/* step_bench.c: see step_bench.h. */
#include "tests/unit/trainer/run/step_bench.h"

#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/message/record.h"
#include "tests/emulated/emulated.h"
#include "trainer/device/graph_replay.h"
#include "trainer/model/params/unit_order.h"
#include "trainer/ops/open.h"

/* Rows of text, of pictures and with a video; successive steps get different rows. */
static const document contents[ROWS][2] = {{{"4 1x4x6 3 1x6x4 2", 11}, {"10", 33}},
                                           {{"3 v2x4x4 2 + 2", 22}, {"7", 23}},
                                           {{"20", 41}, {"30", 42}},
                                           {{"4 1x4x4 9", 51}, {"2 1x4x6 6", 52}},
                                           {{"12", 61}, {"5 1x6x6 5", 62}},
                                           {{"25", 71}, {"8", 72}}};

char *bench_record(fixture *setup, const char *folder)
{
    row rows[ROWS];
    for (int i = 0; i < ROWS; i++)
        rows[i] = fixture_row(setup, contents[i], 2, false);
    return bench_record_rows(rows, ROWS, folder);
}

char *bench_record_rows(const row *rows, int count, const char *folder)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/rows.rec", folder);
    record_writer *recording;
    codec *coder;
    wire_msg *message;
    assert_ok(record_create(path, "{}", &recording));
    assert_ok(codec_new(&coder));
    assert_ok(wire_msg_new(&message));
    for (int i = 0; i < count; i++) {
        row packed = rows[i];
        char cursor[32];
        snprintf(cursor, sizeof cursor, "{\"row\":%d}", i);
        packed.cursor = cursor;
        packed.quarantine = "[]";
        wire_msg_clear(message);
        assert_ok(codec_encode(coder, &packed, (uint64_t)i, IMAGE_FILTER_NONE, IMAGE_CODEC_NONE,
                               message));
        assert_ok(record_add(recording, message));
    }
    assert_ok(record_finish(&recording));
    wire_msg_free(&message);
    codec_free(&coder);
    return strdup(path);
}

int bench_files_open(void **state)
{
    bench_files *paths = calloc(1, sizeof *paths);
    model_dims dims;
    assert_non_null(paths);
    assert_ok(dims_preset("debug", &dims));
    fixture_open(&paths->setup, &dims);
    paths->folder = harness_temp();
    paths->recording = bench_record(&paths->setup, paths->folder);
    *state = paths;
    return 0;
}

int bench_files_close(void **state)
{
    bench_files *paths = *state;
    fixture_close(&paths->setup);
    harness_remove(&paths->folder);
    free(paths->recording);
    free(paths);
    return 0;
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

static void open_device(bench *setup, int ahead, bool graphs)
{
    if (ahead >= 0) {
        assert_ok(emulated_open(ahead, graphs, &setup->run.device));
        return;
    }
    assert_ok(device_open(BACKEND_CPU, &(device_options){.threads = 2}, &setup->run.device));
    setup->fixed = *setup->run.device->backend;
    setup->fixed.fixed_shapes = true;
    setup->run.device->backend = &setup->fixed;
}

void bench_open(bench *setup, const char *recording, int ahead, const char *scope,
                const bucket_list *list)
{
    const bench_how how = {.ahead = ahead, .scope = scope, .list = list, .max_norm = 1.0};
    bench_open_as(setup, recording, &how);
}

void bench_open_as(bench *setup, const char *recording, const bench_how *wanted)
{
    const bool captures = strcmp(wanted->scope, "none") != 0;
    *setup = (bench){0};
    session *run = &setup->run;
    conf *options = &setup->options;
    run->buckets = *wanted->list;
    run->seq_len = SEQ_LEN;
    options->training_local_batch_size = LOCAL;
    options->optimizer_beta1 = 0.9;
    options->optimizer_beta2 = 0.95;
    options->optimizer_eps = 1e-8;
    options->optimizer_weight_decay = 0.1;
    options->training_max_norm = wanted->max_norm;
    run->conf = options;
    mesh_alone(&run->mesh);
    run->accumulation = wanted->in_backward ? 1 : ACCUMULATION;
    run->schedule = (schedule){.peak = 1e-3, .steps = STEPS, .warmup_steps = 2, .decay_ratio = 1.0};
    open_device(setup, wanted->ahead, captures);
    assert_ok(run->device->backend->stream_new(run->device, &run->stream));
    assert_ok(dims_preset("debug", &run->dims));
    assert_ok(params_new(&run->dims, &run->params));
    run->params->in_backward = wanted->in_backward;
    run->params->moments_on_host = wanted->moments_on_host;
    run->params->frozen_on_host = wanted->frozen_on_host;
    for (int64_t i = 0; i < run->params->count; i++)
        run->params->list[i].frozen = wanted->frozen && run->params->list[i].group != GROUP_TEXT &&
                                      run->params->list[i].group != GROUP_ROUTER;
    assert_ok(params_alloc(run->params, run->stream, true));
    assert_ok(params_init(run->params, run->stream, 3));
    groups_share(run->params, &run->dims, &run->share);
    run->cap = (batch_caps){.tokens = LOCAL * SEQ_LEN,
                            .docs = 8,
                            .patches = LOCAL * PATCHES,
                            .items = 16,
                            .frames = 16,
                            .targets = LOCAL * SEQ_LEN};
    const backend_vtable *backend = run->device->backend;
    assert_ok(backend->alloc(run->device, sizeof(double), (void **)&run->sums.loss));
    assert_ok(backend->alloc(run->device, sizeof(double), (void **)&run->sums.weight));
    assert_ok(backend->alloc(run->device, sizeof(double), &run->sums.aux));
    model_options how = {.cap = run->cap, .training = true, .router_aux_coef = 0.01};
    model_options_freeze(&how, run->params);
    assert_ok(model_new(run->stream, &run->dims, run->params, &how, &run->model));
    upload_ring_options ring = {.cap = run->cap,
                                .buckets = run->buckets.cap,
                                .n_buckets = run->buckets.count,
                                .aux_coefficient = 0.01};
    assert_ok(upload_ring_new(run->stream, &run->dims, &ring, &run->upload_ring));
    run->stager = upload_ring_stager(run->upload_ring);
    run->got = calloc(LOCAL, sizeof *run->got);
    run->rows = calloc(LOCAL, sizeof *run->rows);
    assert_ok(optimizer_new(options, run->params, run->stream, &run->optimizer));
    if (wanted->in_backward)
        assert_ok(optimizer_in_backward(run->optimizer, run->stream, run->sums.loss,
                                        run->sums.weight, unit_count(&run->dims), wanted->share));
    assert_ok(graph_replay_new(run->stream, captures ? wanted->scope : "off"));
    assert_ok(step_open(run));
    receiver_options feed = {.replay.path = recording, .replay.loops = 0, .slots = 2 * LOCAL};
    assert_ok(receiver_open(&feed, &run->train));
}
