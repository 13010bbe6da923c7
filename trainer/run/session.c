/* session.c: opens a session in order, each part from what the parts before it found:
 *
 *   device, mesh        session_device.c; after these the ranks can speak with each other
 *   model, memory plan  session_model.c, session_memory.c; a plan over memory.limit is refused here
 *   values, stream      from a checkpoint, files or the initialiser; rows from prepd or a recording
 *   shapes              the stream's WELCOME tells row length and capacities; planned once more
 *   step                activations, upload ring, optimiser, capture
 *
 * Whatever fails on the way closes what is open. */
#include "trainer/run/session.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/json.h"
#include "common/program/log.h"
#include "common/model_folder/model_files.h"
#include "proto/cursor.h"
#include "trainer/checkpoint/writer.h"
#include "trainer/device/graph_replay.h"
#include "trainer/model/pass_context.h"
#include "trainer/parallel/layout.h"
#include "trainer/plan/memory.h"
#include "trainer/run/session_device.h"
#include "trainer/run/session_memory.h"
#include "trainer/run/session_model.h"
#include "trainer/run/step.h"
#include "trainer/run/stop.h"

/* Above this share of ln(vocabulary), the loss of a model that guesses, a first loss is suspect. */
static const double NEAR_BLIND = 0.9;

/* How many data-parallel consumers share the stream. */
static int consumers(const session *s)
{
    return (int)(s->mesh.layout.replicate * s->mesh.layout.shard);
}

static void tell_waiting(const char *endpoint, double seconds, const char *why)
{
    log_info("waiting for prepd at %s, for %.0f s so far: %s", endpoint, seconds, why);
}

static void client_settings(const session *s, const char *stream_name, const char *options,
                            receiver_options *o)
{
    const conf *c = s->conf;
    /* Training rows are divided over the consumers; held-out rows go to every rank. */
    const bool mine = strcmp(stream_name, "train") == 0;
    /* stop_heard and not stop_asked, because a rank that stops waiting for rows tells the others by
     * a void step (step.h) or, while it evaluates, through eval/rows_agreed.h. */
    o->stopped = stop_heard;
    o->reconnect_s = c->prepd_reconnect_timeout;
    o->trains = mine;
    o->replay = (replay_options){.rank = mine ? s->mesh.place.consumer : 0,
                                 .ranks = mine ? consumers(s) : 1,
                                 .step_rows = mine ? c->training_global_batch_size : 0};
    o->client = (client_options){
        .endpoint = c->prepd_endpoint,
        .keys = c->prepd_keys,
        .stream = stream_name,
        .stream_options = options,
        .rank = mine ? s->mesh.place.consumer : 0,
        .ranks = mine ? consumers(s) : 1,
        .credit_bytes = c->prepd_ahead_bytes,
        .rows_later = !mine || c->training_steps > 0, /* else the schedule needs the count */
        .timeout_ms = (int)(c->feed_timeout * 1000.0),
        .patient = true,
        .waiting = tell_waiting,
        .stopped = stop_heard,
    };
    /* Consumers take turns with the held-out rows, so there is a slot for the row of each. */
    const int64_t held_out = consumers(s) + 1;
    o->slots = mine                       ? memory_rows_ahead(c, c->training_local_batch_size)
               : c->feed_ahead > held_out ? c->feed_ahead
                                          : held_out;
}

/* A run that goes on must have the stream it began with. options: NULL for a recording. */
static status check_stream(const resume_point *from, const char *options)
{
    char *difference = NULL;
    bool was_recording = !from->progress.stream_options || !from->progress.stream_options[0];
    if (was_recording != !options)
        return FAIL_IN(ST_CONFIG, from->path,
                       "feed.replay: the run kept here took its rows from %s, and this one takes "
                       "them from %s; give it the same source of rows, or choose another "
                       "job.dump_folder, or begin anew with checkpoint.load_step 0",
                       was_recording ? "a recording" : "a daemon",
                       options ? "a daemon" : "a recording");
    if (!options)
        return ST_OK;
    TRY(conf_stream_diff(options, from->progress.stream_options, &difference));
    if (!difference)
        return ST_OK;
    status st =
        FAIL_IN(ST_CONFIG, from->path,
                "the run kept here has another stream: %s; give the same options as before, "
                "or choose another job.dump_folder, or begin anew with "
                "checkpoint.load_step 0",
                difference);
    free(difference);
    return st;
}

/* Makes the train stream go on where the checkpoint left it. */
static status enter_stream(const session *s, const char *options, receiver_options *o)
{
    TRY(check_stream(s->from, options));
    o->replay.skip = (uint64_t)s->from->progress.rows;
    o->client.cursor = s->from->progress.cursor;
    return ST_OK;
}

/* Refuses a checkpoint whose cursor does not point at the row after those that were trained. Row
 * numbers of a recording start again in each of its rounds, so they are compared modulo its rows.
 */
static status check_entry(const session *s)
{
    json_value *welcome = NULL;
    const char *text = receiver_welcome(s->train);
    int64_t next;
    if (!s->from || s->conf->feed_replay[0] || s->from->progress.rows == 0)
        return ST_OK;
    TRY(cursor_read(s->from->progress.cursor, s->from->path, "train", 0, &next));
    TRY(json_parse(text, strlen(text), "WELCOME", &welcome));
    const json_value *recording = json_find(welcome, "recording");
    const int64_t first = json_int(json_find(recording, "first"), 0);
    const int64_t rows = json_int(json_find(recording, "rows"), 0);
    json_free(&welcome);
    const int64_t trained = s->from->progress.rows;
    if (rows > 0 ? (next - first) % rows == trained % rows : next == trained)
        return ST_OK;
    return FAIL_IN(ST_BAD_INPUT, s->from->path,
                   "the cursor kept here resumes at row %" PRId64 ", but %" PRId64
                   " rows were trained: choose an earlier checkpoint with checkpoint.load_step, or "
                   "begin anew with checkpoint.load_step 0",
                   next, trained);
}

/* Index and stream options that a recording was made from, as its WELCOME message gives them. */
static status recording_of(const receiver *r, char **out)
{
    json_value *welcome = NULL;
    json_writer w;
    const char *text = receiver_welcome(r), *key;
    size_t size;
    TRY(json_parse(text, strlen(text), "WELCOME", &welcome));
    const json_value *options = json_find(welcome, "options");
    json_writer_init(&w);
    json_begin_object(&w);
    json_put_key_cstr(&w, "index", json_text(json_find(welcome, "index"), ""));
    for (size_t i = 0; i < json_count(options); i++) {
        const json_value *v = json_member(options, i, &key);
        json_put_key_value(&w, key, v);
    }
    json_end_object(&w);
    status st = json_writer_take(&w, out, &size);
    json_writer_done(&w);
    json_free(&welcome);
    return st;
}

/* A checkpoint counts the rows it has taken from a recording, so the run must go on with the same
 * recording. */
static status check_recording(session *s)
{
    char *difference = NULL;
    if (!s->conf->feed_replay[0])
        return ST_OK;
    TRY(recording_of(s->train, &s->recording));
    const char *was = s->from ? s->from->progress.recording : NULL;
    if (!was || !was[0])
        return ST_OK;
    TRY(conf_stream_diff(s->recording, was, &difference));
    if (!difference)
        return ST_OK;
    status st = FAIL_IN(ST_CONFIG, s->conf->feed_replay,
                        "the run kept in %s took its rows from another recording: %s; give that "
                        "recording, or choose another job.dump_folder, or begin anew with "
                        "checkpoint.load_step 0",
                        s->from->path, difference);
    free(difference);
    return st;
}

static status options_of(const conf *c, char **out)
{
    hash128 model_digest;
    TRY(model_files_digest(c, &model_digest));
    return conf_stream_json(c, model_digest, out);
}

status session_stream(const session *s, const char *stream_name, const conf *c, receiver **out)
{
    receiver_options o = {0};
    const bool trains = strcmp(stream_name, "train") == 0, goes_on = s->from && trains;
    if (c->feed_replay[0]) {
        client_settings(s, stream_name, NULL, &o);
        o.replay.path = c->feed_replay;
        /* A recording is repeated until training.steps are done. Without training.steps, and for
         * an evaluation, it is read once. */
        bool endless = s->use == SESSION_TRAIN && c->training_steps > 0;
        o.replay.loops = endless ? 0 : 1;
        if (goes_on)
            TRY(enter_stream(s, NULL, &o));
        log_info("rows come from the recording %s", c->feed_replay);
        return receiver_open(&o, out);
    }
    char *options = NULL;
    if (!s->any_stream)
        TRY(options_of(c, &options));
    client_settings(s, stream_name, options, &o);
    status st = goes_on ? enter_stream(s, options, &o) : ST_OK;
    if (st == ST_OK && trains)
        st = row_broadcast_open(&s->mesh, c->comm_init_timeout_seconds, &o.row_broadcast);
    if (st == ST_OK) {
        if (!o.row_broadcast || row_broadcast_is_source(o.row_broadcast))
            log_info("connecting to %s for the %s stream", c->prepd_endpoint, stream_name);
        st = receiver_open(&o, out);
    }
    free(options);
    return st;
}

static bool answers_wanted(const session *s)
{
    return generate_wanted(s->conf, s->use == SESSION_TRAIN);
}

/* Reads row length and capacities from the WELCOME message of a daemon or a recording, which knows
 * them from its plan. */
static status read_shape(const session *s, receiver *r, int64_t *out_seq_len, bucket_list *out)
{
    json_value *welcome = NULL;
    const char *text = receiver_welcome(r);
    int64_t seq_len = 0, patches = 0;
    status st = ST_OK;
    TRY(json_parse(text, strlen(text), "WELCOME", &welcome));
    TRY_OR(done, json_want_int(welcome, "seq_len", "WELCOME", &seq_len));
    TRY_OR(done, json_want_int(welcome, "patch_budget", "WELCOME", &patches));
    if (seq_len <= 0 || seq_len > INT32_MAX / 8 || patches < 0 || patches > INT32_MAX / 8) {
        st = FAIL(ST_PROTOCOL,
                  "the WELCOME message offers rows of %" PRId64 " tokens and %" PRId64
                  " patches, which no row can have",
                  seq_len, patches);
        goto done;
    }
    const batch_caps widest = memory_caps(1, seq_len, patches);
    TRY_OR(done, bucket_list_read(welcome, s->conf->training_local_batch_size, &widest, out));
    *out_seq_len = seq_len;
done:
    json_free(&welcome);
    return st;
}

static status rows_of(receiver *r, int64_t *out)
{
    json_value *welcome = NULL;
    const char *text = receiver_welcome(r);
    *out = receiver_rows(r);
    if (*out >= 0)
        return ST_OK;
    TRY(json_parse(text, strlen(text), "WELCOME", &welcome));
    *out = json_int(json_find(welcome, "rows"), -1);
    json_free(&welcome);
    return ST_OK;
}

bool session_evaluates(const conf *c)
{
    return c->eval_enable && !c->feed_replay[0];
}

/* Finds the largest capacities that a batch may need, for the stream and for held-out rows. The
 * held-out stream is opened here for that reason, and so that a missing split is found now and not
 * at the end of the run. */
static status open_shape(session *s)
{
    receiver *held = NULL;
    bucket_list l;
    int64_t seq_len;
    const bool trains = s->use == SESSION_TRAIN;
    s->stream_rows = -1;
    if (trains) {
        TRY(rows_of(s->train, &s->stream_rows));
        TRY(read_shape(s, s->train, &s->seq_len, &s->buckets));
        s->cap = s->buckets.cap[s->buckets.count - 1];
    }
    if (!trains || session_evaluates(s->conf)) {
        TRY(session_stream(s, "eval", s->conf, &held));
        status st = read_shape(s, held, &seq_len, &l);
        receiver_close(&held);
        TRY(st);
        bucket_include(&s->cap, &l.cap[l.count - 1]);
        if (!trains) {
            s->buckets = l;
            s->seq_len = seq_len;
        }
    }
    s->cap.longest = s->cap.frame = 0; /* unlimited: texts grow while answers are generated */
    TRY(session_memory_choose(s));
    return session_memory_check(s);
}

/* Reserves the scratch memory of ops as one block of the planned size. */
static status reserve_workspace(const session *s)
{
    const backend_vtable *v = s->device->backend;
    memory_plan p;
    if (!v->reserve)
        return ST_OK;
    TRY(session_memory_plan(s, &p));
    return v->reserve(s->stream, (size_t)p.gpu.workspace);
}

static status open_generator(session *s)
{
    const generator_options o = {.stream = s->stream,
                                 .dims = &s->dims,
                                 .mesh = &s->mesh,
                                 .model = s->model,
                                 .prompts = s->stager,
                                 .cap = s->cap,
                                 .longest = s->cap.tokens / s->conf->training_local_batch_size};
    return generate_new(&o, &s->generator);
}

static status open_step(session *s, enum session_use use)
{
    const conf *c = s->conf;
    const backend_vtable *v = s->device->backend;
    size_t acc = st_dtype_size(v->acc);
    TRY(v->alloc(s->device, sizeof(double), (void **)&s->sums.loss));
    TRY(v->alloc(s->device, sizeof(double), (void **)&s->sums.weight));
    TRY(v->alloc(s->device, acc, &s->sums.aux));
    model_options o = {
        .cap = s->cap,
        .mesh = &s->mesh,
        .training = use == SESSION_TRAIN,
        .recomputed = s->recomputed,
        .router_aux_coef = c->loss_router_aux_coef,
        .exchange = memory_exchange_way(c, &s->mesh.layout),
    };
    model_options_freeze(&o, s->params);
    TRY(model_new(s->stream, &s->dims, s->params, &o, &s->model));
    upload_ring_options l = {.cap = s->cap,
                             .buckets = s->buckets.cap,
                             .n_buckets = s->buckets.count,
                             .share = row_share_of(&s->mesh),
                             .in_use = model_flights(s->model),
                             .aux_coefficient = c->loss_router_aux_coef,
                             .weighting = c->loss_weighting};
    TRY(upload_ring_new(s->stream, &s->dims, &l, &s->upload_ring));
    s->stager = upload_ring_stager(s->upload_ring);
    s->got = calloc((size_t)c->training_local_batch_size, sizeof *s->got);
    s->rows = calloc((size_t)c->training_local_batch_size, sizeof *s->rows);
    if (!s->got || !s->rows)
        return FAIL(ST_NO_MEMORY, "no memory for the rows of a micro-batch");
    if (answers_wanted(s))
        TRY(open_generator(s));
    if (use != SESSION_TRAIN)
        return ST_OK;
    s->accumulation = c->training_global_batch_size / c->training_local_batch_size / consumers(s);
    groups_share(s->params, &s->dims, &s->share);
    s->schedule = (schedule){
        .peak = c->optimizer_lr,
        .steps = c->training_steps > 0 ? c->training_steps
                 : s->stream_rows > 0  ? s->stream_rows / c->training_global_batch_size
                                       : 0,
        .warmup_steps = c->lr_scheduler_warmup_steps,
        .decay_ratio = c->lr_scheduler_decay_ratio,
        .decay_type = c->lr_scheduler_decay_type,
        .min_factor = c->lr_scheduler_min_lr_factor,
    };
    TRY(optimizer_new(c, s->params, s->stream, &s->optimizer));
    TRY(reserve_workspace(s));
    TRY(session_capture(s));
    return step_open(s);
}

status session_check_layout(const conf *c, int there)
{
    layout l;
    TRY(layout_of(c, NULL, &l));
    if (l.world != there)
        return FAIL(ST_CONFIG,
                    "parallelism: the layout needs %" PRId64
                    " ranks, a GPU each, but there are %d; the plan above says what it would take. "
                    "Start that many ranks with trainer train --nproc %" PRId64
                    ", torchrun, srun or mpirun; or, for one rank, leave every degree at 1, "
                    "data_parallel_shard_degree at -1 and world_size at 0",
                    l.world, there, l.world);
    return ST_OK;
}

static status open_mesh(session *s, const world *w)
{
    layout l;
    if (!w || w->place.size == 1)
        return ST_OK;
    TRY(layout_of(s->conf, NULL, &l));
    return mesh_open(&l, w->place.rank, w->engine, w->joined, w->ledger, &s->mesh);
}

/* Keeps the options of the stream, which every checkpoint records. */
static status stream_options(session *s)
{
    if (s->conf->feed_replay[0] || s->any_stream)
        return ST_OK;
    return options_of(s->conf, &s->stream_options);
}

/* Opens the device and the mesh of ranks. */
static status meet_world(const conf *c, const world *w, enum session_use use, bool any_stream,
                         session *out)
{
    memset(out, 0, sizeof *out);
    out->any_stream = any_stream;
    out->world = w;
    mesh_alone(&out->mesh);
    out->conf = c;
    out->use = use;
    status st = ST_OK;
    if (use != SESSION_EVAL || (w && w->place.size > 1)) /* one rank can evaluate any layout */
        TRY(session_check_layout(c, w ? w->place.size : 1));
    TRY_OR(failed, session_device(out));
    TRY_OR(failed, open_mesh(out, w));
    return ST_OK;
failed:
    session_close(out);
    return st;
}

static status open_rest(const resume_point *from, session *out)
{
    const conf *c = out->conf;
    const enum session_use use = out->use;
    status st = ST_OK;
    out->from = from;
    TRY_OR(failed, session_model(out));
    memory_plan widest;
    TRY_OR(failed, session_memory_plan(out, &widest));
    out->planned_by_options = widest.total;
    const char *folder;
    const bool reads = device_has_storage(out->device); /* a dry run never decodes a token */
    if (reads && model_files_folder(c, &folder) == ST_OK)
        TRY_OR(failed, tokenizer_load(folder, &out->tokenizer));
    if (!c->feed_replay[0]) /* a recording has its own row length, which open_shape checks */
        TRY_OR(failed, session_memory_check(out));
    TRY_OR(failed, session_values(out));
    if (use == SESSION_TRAIN) {
        TRY_OR(failed, session_stream(out, "train", c, &out->train));
        TRY_OR(failed, stream_options(out));
        TRY_OR(failed, check_recording(out));
        TRY_OR(failed, check_entry(out));
    }
    TRY_OR(failed, open_shape(out));
    TRY_OR(failed, open_step(out, use));
    return ST_OK;
failed:
    session_close(out);
    return st;
}

static status open_from(const conf *c, const world *w, enum session_use use, bool any_stream,
                        const resume_point *from, session *out)
{
    TRY(meet_world(c, w, use, any_stream, out));
    return open_rest(from, out);
}

status session_open(const conf *c, enum session_use use, session *out)
{
    return open_from(c, NULL, use, false, NULL, out);
}

status session_open_rank(const conf *c, const world *w, session *out)
{
    return open_from(c, w, SESSION_EVAL, false, NULL, out);
}

status session_open_any(const conf *c, session *out)
{
    return open_from(c, NULL, SESSION_TRAIN, true, NULL, out);
}

status session_meet(const conf *c, const world *w, session *out)
{
    return meet_world(c, w, SESSION_TRAIN, false, out);
}

status session_go_on(const resume_point *from, session *inout)
{
    return open_rest(from, inout);
}

status session_resume(const conf *c, const world *w, const resume_point *from, session *out)
{
    return open_from(c, w, SESSION_TRAIN, false, from, out);
}

void session_close(session *s)
{
    receiver_close(&s->train);
    if (s->stream) {
        const backend_vtable *v = s->device->backend;
        step_close(s);
        graph_replay_free(s->stream);
        optimizer_free(&s->optimizer, s->stream);
        generate_free(&s->generator);
        upload_ring_free(&s->upload_ring);
        model_free(&s->model, s->stream);
        if (s->params)
            params_release(s->params, s->stream);
        v->release(s->device, s->sums.loss);
        v->release(s->device, s->sums.weight);
        v->release(s->device, s->sums.aux);
        v->stream_free(&s->stream);
    }
    free(s->got);
    free(s->rows);
    free(s->stream_options);
    free(s->recording);
    params_free(&s->params);
    tokenizer_free(&s->tokenizer);
    mesh_close(&s->mesh);
    if (s->device)
        world_detach(s->world);
    device_close(&s->device);
    memset(s, 0, sizeof *s);
}

void session_check_first_loss(const session *s, double loss)
{
    double blind = log((double)s->dims.text.vocab);
    if (!isfinite(loss))
        log_warn("the first loss is not a finite number: do the weights of %s contain values that "
                 "are not finite?",
                 s->conf->model_path);
    else if (s->from_weights && !(loss <= NEAR_BLIND * blind))
        log_warn("the first loss %.3f is near ln(vocabulary) = %.3f, the loss of guessing, though "
                 "%s has weights: they may be untrained, or stored in another layout than the one "
                 "they were read in",
                 loss, blind, s->conf->model_path);
}
