/* session.c: opens a session in order, each part from what the parts before it found:
 *
 *   device, mesh        session_device.c; after these the ranks can speak with each other
 *   model, memory plan  session_model.c, session_memory.c; a plan over memory.limit is refused here
 *   values, stream      from a checkpoint, files or the initialiser; rows from prepd or a recording
 *   shapes              the stream's WELCOME tells row length and capacities; planned once more
 *   trial               trial.c: which kernels the ranks use, by trying them in these shapes
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
#include "trainer/run/session_endpoint.h"
#include "trainer/run/session_memory.h"
#include "trainer/run/session_model.h"
#include "trainer/run/step.h"
#include "trainer/run/stop.h"
#include "trainer/run/trial.h"

/* Above this share of ln(vocabulary), the loss of a model that guesses, a first loss is suspect. */
static const double NEAR_BLIND = 0.9;

/* How many data-parallel consumers share the stream. */
static int consumers(const session *run)
{
    return (int)(run->mesh.layout.replicate * run->mesh.layout.shard);
}

static void tell_waiting(const char *endpoint, double seconds, const char *why)
{
    log_info("waiting for prepd at %s, for %.0f s so far: %s", endpoint, seconds, why);
}

static void client_settings(const session *run, const char *stream_name, const char *options,
                            receiver_options *how)
{
    const conf *settings = run->conf;
    /* Training rows are divided over the consumers; held-out rows go to every rank. */
    const bool mine = strcmp(stream_name, "train") == 0;
    /* stop_heard and not stop_asked, because a rank that stops waiting for rows tells the others by
     * a void step (step.h) or, while it evaluates, through eval/rows_agreed.h. */
    how->stopped = stop_heard;
    how->reconnect_s = settings->prepd_reconnect_timeout;
    how->trains = mine;
    how->replay = (replay_options){.rank = mine ? run->mesh.place.consumer : 0,
                                   .ranks = mine ? consumers(run) : 1,
                                   .step_rows = mine ? settings->training_global_batch_size : 0};
    how->client = (client_options){
        .endpoint = run->endpoint,
        .keys = settings->prepd_keys,
        .stream = stream_name,
        .stream_options = options,
        .rank = mine ? run->mesh.place.consumer : 0,
        .ranks = mine ? consumers(run) : 1,
        .credit_bytes = settings->prepd_ahead_bytes,
        .rows_later = !mine || settings->training_steps > 0, /* else the schedule needs the count */
        .timeout_ms = (int)(settings->feed_timeout * 1000.0),
        .patient = true,
        .waiting = tell_waiting,
        .stopped = stop_heard,
    };
    /* Consumers take turns with the held-out rows, so there is a slot for the row of each. */
    const int64_t held_out = consumers(run) + 1;
    how->slots = mine ? memory_rows_ahead(settings, settings->training_local_batch_size)
                 : settings->feed_ahead > held_out ? settings->feed_ahead
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
static status enter_stream(const session *run, const char *options, receiver_options *how)
{
    TRY(check_stream(run->from, options));
    how->replay.skip = (uint64_t)run->from->progress.rows;
    how->client.cursor = run->from->progress.cursor;
    how->client.quarantine = run->from->progress.quarantine;
    return ST_OK;
}

/* Refuses a checkpoint whose cursor does not point at the row after those that were trained. Row
 * numbers of a recording start again in each of its rounds, so they are compared modulo its rows.
 */
static status check_entry(const session *run)
{
    json_value *welcome = NULL;
    const char *text = receiver_welcome(run->train);
    int64_t next;
    if (!run->from || run->conf->feed_replay[0] || run->from->progress.rows == 0)
        return ST_OK;
    TRY(cursor_read(run->from->progress.cursor, run->from->path, "train", 0, &next));
    TRY(json_parse(text, strlen(text), "WELCOME", &welcome));
    const json_value *recording = json_find(welcome, "recording");
    const int64_t first = json_int(json_find(recording, "first"), 0);
    const int64_t rows = json_int(json_find(recording, "rows"), 0);
    json_free(&welcome);
    const int64_t trained = run->from->progress.rows;
    if (rows > 0 ? (next - first) % rows == trained % rows : next == trained)
        return ST_OK;
    return FAIL_IN(ST_BAD_INPUT, run->from->path,
                   "the cursor kept here resumes at row %" PRId64 ", but %" PRId64
                   " rows were trained: choose an earlier checkpoint with checkpoint.load_step, or "
                   "begin anew with checkpoint.load_step 0",
                   next, trained);
}

/* Index and stream options that a recording was made from, as its WELCOME message gives them. */
static status recording_of(const receiver *input, char **out)
{
    json_value *welcome = NULL;
    json_writer writer;
    const char *text = receiver_welcome(input), *key;
    size_t size;
    TRY(json_parse(text, strlen(text), "WELCOME", &welcome));
    const json_value *options = json_find(welcome, "options");
    json_writer_init(&writer);
    json_begin_object(&writer);
    json_put_key_cstr(&writer, "index", json_text(json_find(welcome, "index"), ""));
    for (size_t i = 0; i < json_count(options); i++) {
        const json_value *value = json_member(options, i, &key);
        json_put_key_value(&writer, key, value);
    }
    json_end_object(&writer);
    status st = json_writer_take(&writer, out, &size);
    json_writer_done(&writer);
    json_free(&welcome);
    return st;
}

/* A checkpoint counts the rows it has taken from a recording, so the run must go on with the same
 * recording. */
static status check_recording(session *run)
{
    char *difference = NULL;
    if (!run->conf->feed_replay[0])
        return ST_OK;
    TRY(recording_of(run->train, &run->recording));
    const char *was = run->from ? run->from->progress.recording : NULL;
    if (!was || !was[0])
        return ST_OK;
    TRY(conf_stream_diff(run->recording, was, &difference));
    if (!difference)
        return ST_OK;
    status st = FAIL_IN(ST_CONFIG, run->conf->feed_replay,
                        "the run kept in %s took its rows from another recording: %s; give that "
                        "recording, or choose another job.dump_folder, or begin anew with "
                        "checkpoint.load_step 0",
                        run->from->path, difference);
    free(difference);
    return st;
}

static status options_of(const conf *settings, char **out)
{
    hash128 model_digest;
    TRY(model_files_digest(settings, &model_digest));
    return conf_stream_json(settings, model_digest, out);
}

status session_stream(const session *run, const char *stream_name, const conf *settings,
                      receiver **out)
{
    receiver_options how = {0};
    const bool trains = strcmp(stream_name, "train") == 0, goes_on = run->from && trains;
    if (settings->feed_replay[0]) {
        client_settings(run, stream_name, NULL, &how);
        how.replay.path = settings->feed_replay;
        /* A recording is repeated until training.steps are done. Without training.steps, and for
         * an evaluation, it is read once. */
        bool endless = run->use == SESSION_TRAIN && settings->training_steps > 0;
        how.replay.loops = endless ? 0 : 1;
        if (goes_on)
            TRY(enter_stream(run, NULL, &how));
        log_info("rows come from the recording %s", settings->feed_replay);
        return receiver_open(&how, out);
    }
    char *options = NULL;
    if (!run->any_stream)
        TRY(options_of(settings, &options));
    client_settings(run, stream_name, options, &how);
    status st = goes_on ? enter_stream(run, options, &how) : ST_OK;
    if (st == ST_OK && trains)
        st =
            row_broadcast_open(&run->mesh, settings->comm_init_timeout_seconds, &how.row_broadcast);
    if (st == ST_OK) {
        if (!how.row_broadcast || row_broadcast_is_source(how.row_broadcast))
            log_info("connecting to %s for the %s stream", run->endpoint, stream_name);
        st = receiver_open(&how, out);
    }
    free(options);
    return st;
}

static bool answers_wanted(const session *run)
{
    return generate_wanted(run->conf, run->use == SESSION_TRAIN);
}

/* Reads row length and capacities from the WELCOME message of a daemon or a recording, which knows
 * them from its plan. */
static status read_shape(const session *run, receiver *input, int64_t *out_seq_len,
                         bucket_list *out)
{
    json_value *welcome = NULL;
    const char *text = receiver_welcome(input);
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
    TRY_OR(done, bucket_list_read(welcome, run->conf->training_local_batch_size, &widest, out));
    *out_seq_len = seq_len;
done:
    json_free(&welcome);
    return st;
}

static status rows_of(receiver *input, int64_t *out)
{
    json_value *welcome = NULL;
    const char *text = receiver_welcome(input);
    *out = receiver_rows(input);
    if (*out >= 0)
        return ST_OK;
    TRY(json_parse(text, strlen(text), "WELCOME", &welcome));
    *out = json_int(json_find(welcome, "rows"), -1);
    json_free(&welcome);
    return ST_OK;
}

bool session_evaluates(const conf *settings)
{
    return settings->eval_enable && !settings->feed_replay[0];
}

/* Finds the largest capacities that a batch may need, for the stream and for held-out rows. The
 * held-out stream is opened here for that reason, and so that a missing split is found now and not
 * at the end of the run. */
static status open_shape(session *run)
{
    receiver *held = NULL;
    bucket_list buckets;
    int64_t seq_len;
    const bool trains = run->use == SESSION_TRAIN;
    run->stream_rows = -1;
    if (trains) {
        TRY(rows_of(run->train, &run->stream_rows));
        TRY(read_shape(run, run->train, &run->seq_len, &run->buckets));
        run->cap = run->buckets.cap[run->buckets.count - 1];
    }
    if (!trains || session_evaluates(run->conf)) {
        TRY(session_stream(run, "eval", run->conf, &held));
        status st = read_shape(run, held, &seq_len, &buckets);
        receiver_close(&held);
        TRY(st);
        bucket_include(&run->cap, &buckets.cap[buckets.count - 1]);
        if (!trains) {
            run->buckets = buckets;
            run->seq_len = seq_len;
        }
    }
    run->cap.longest = run->cap.frame = 0; /* unlimited: texts grow while answers are generated */
    TRY(session_memory_choose(run));
    return session_memory_check(run);
}

/* Reserves the scratch memory of ops as one block of the planned size. */
static status reserve_workspace(const session *run)
{
    const backend_vtable *backend = run->device->backend;
    memory_plan plan;
    if (!backend->reserve)
        return ST_OK;
    TRY(session_memory_plan(run, &plan));
    return backend->reserve(run->stream, (size_t)plan.gpu.workspace);
}

static status open_generator(session *run)
{
    const generator_options how = {.stream = run->stream,
                                   .dims = &run->dims,
                                   .mesh = &run->mesh,
                                   .model = run->model,
                                   .prompts = run->stager,
                                   .cap = run->cap,
                                   .longest =
                                       run->cap.tokens / run->conf->training_local_batch_size};
    return generate_new(&how, &run->generator);
}

static status open_step(session *run, enum session_use use)
{
    const conf *settings = run->conf;
    const backend_vtable *backend = run->device->backend;
    size_t acc = st_dtype_size(backend->acc);
    TRY(backend->alloc(run->device, sizeof(double), (void **)&run->sums.loss));
    TRY(backend->alloc(run->device, sizeof(double), (void **)&run->sums.weight));
    TRY(backend->alloc(run->device, acc, &run->sums.aux));
    model_options how = {
        .cap = run->cap,
        .mesh = &run->mesh,
        .training = use == SESSION_TRAIN,
        .recomputed = run->recomputed,
        .router_aux_coef = settings->loss_router_aux_coef,
        .exchange = memory_exchange_way(settings, &run->mesh.layout),
    };
    model_options_freeze(&how, run->params);
    TRY(model_new(run->stream, &run->dims, run->params, &how, &run->model));
    upload_ring_options ring = {.cap = run->cap,
                                .buckets = run->buckets.cap,
                                .n_buckets = run->buckets.count,
                                .share = row_share_of(&run->mesh),
                                .in_use = model_flights(run->model),
                                .aux_coefficient = settings->loss_router_aux_coef,
                                .weighting = settings->loss_weighting};
    TRY(upload_ring_new(run->stream, &run->dims, &ring, &run->upload_ring));
    run->stager = upload_ring_stager(run->upload_ring);
    run->got = calloc((size_t)settings->training_local_batch_size, sizeof *run->got);
    run->rows = calloc((size_t)settings->training_local_batch_size, sizeof *run->rows);
    if (!run->got || !run->rows)
        return FAIL(ST_NO_MEMORY, "no memory for the rows of a micro-batch");
    if (answers_wanted(run))
        TRY(open_generator(run));
    if (use != SESSION_TRAIN)
        return ST_OK;
    run->accumulation =
        settings->training_global_batch_size / settings->training_local_batch_size / consumers(run);
    groups_share(run->params, &run->dims, &run->share);
    run->schedule = (schedule){
        .peak = settings->optimizer_lr,
        .steps = settings->training_steps > 0 ? settings->training_steps
                 : run->stream_rows > 0 ? run->stream_rows / settings->training_global_batch_size
                                        : 0,
        .warmup_steps = settings->lr_scheduler_warmup_steps,
        .decay_ratio = settings->lr_scheduler_decay_ratio,
        .decay_type = settings->lr_scheduler_decay_type,
        .min_factor = settings->lr_scheduler_min_lr_factor,
    };
    TRY(optimizer_new(settings, run->params, run->stream, &run->optimizer));
    if (run->params->in_backward)
        TRY(optimizer_in_backward(run->optimizer, run->stream, run->sums.loss, run->sums.weight,
                                  run->from ? run->from->progress.clip_norm : 0.0));
    TRY(session_memory_tell_host(run));
    TRY(reserve_workspace(run));
    TRY(session_capture(run));
    return step_open(run);
}

status session_check_layout(const conf *settings, int there)
{
    layout degrees;
    TRY(layout_of(settings, NULL, &degrees));
    if (degrees.world != there)
        return FAIL(ST_CONFIG,
                    "parallelism: the layout needs %" PRId64
                    " ranks, a GPU each, but there are %d; the plan above says what it would take. "
                    "Start that many ranks with trainer train --nproc %" PRId64
                    ", torchrun, srun or mpirun; or, for one rank, leave every degree at 1, "
                    "data_parallel_shard_degree at -1 and world_size at 0",
                    degrees.world, there, degrees.world);
    return ST_OK;
}

static status open_mesh(session *run, const world *job)
{
    layout degrees;
    if (!job || job->place.size == 1)
        return ST_OK;
    TRY(layout_of(run->conf, NULL, &degrees));
    return mesh_open(&degrees, job->place.rank, job->engine, job->joined, job->ledger, &run->mesh);
}

/* Keeps the options of the stream, which every checkpoint records. */
static status stream_options(session *run)
{
    if (run->conf->feed_replay[0] || run->any_stream)
        return ST_OK;
    return options_of(run->conf, &run->stream_options);
}

/* Opens the device, the mesh of ranks and the registry. */
static status meet_world(const conf *settings, const world *job, enum session_use use, session *out)
{
    memset(out, 0, sizeof *out);
    out->world = job;
    mesh_alone(&out->mesh);
    out->conf = settings;
    out->use = use;
    status st = ST_OK;
    if (use != SESSION_EVAL || (job && job->place.size > 1)) /* one rank can evaluate any layout */
        TRY(session_check_layout(settings, job ? job->place.size : 1));
    TRY_OR(failed, session_device(out));
    TRY_OR(failed, open_mesh(out, job));
    TRY_OR(failed, session_endpoint(out));
    TRY_OR(failed, session_model(out));
    return ST_OK;
failed:
    session_close(out);
    return st;
}

static status open_rest(const resume_point *from, session *out)
{
    const conf *settings = out->conf;
    const enum session_use use = out->use;
    status st = ST_OK;
    out->from = from;
    memory_plan widest;
    TRY_OR(failed, session_memory_plan(out, &widest));
    out->planned_by_options = widest.total;
    const char *folder;
    const bool reads = device_has_storage(out->device); /* a dry run never decodes a token */
    if (reads && model_files_folder(settings, &folder) == ST_OK)
        TRY_OR(failed, tokenizer_load(folder, &out->tokenizer));
    if (!settings->feed_replay[0]) /* a recording has its own row length, which open_shape checks */
        TRY_OR(failed, session_memory_check(out));
    TRY_OR(failed, session_values(out));
    if (use == SESSION_TRAIN) {
        TRY_OR(failed, session_stream(out, "train", settings, &out->train));
        TRY_OR(failed, stream_options(out));
        TRY_OR(failed, check_recording(out));
        TRY_OR(failed, check_entry(out));
    }
    TRY_OR(failed, open_shape(out));
    TRY_OR(failed, trial_run(out)); /* while the memory of activations is still free */
    TRY_OR(failed, open_step(out, use));
    return ST_OK;
failed:
    session_close(out);
    return st;
}

static status open_from(const conf *settings, const world *job, enum session_use use,
                        const resume_point *from, session *out)
{
    TRY(meet_world(settings, job, use, out));
    return open_rest(from, out);
}

status session_open(const conf *settings, enum session_use use, session *out)
{
    return open_from(settings, NULL, use, NULL, out);
}

status session_open_rank(const conf *settings, const world *job, session *out)
{
    return open_from(settings, job, SESSION_EVAL, NULL, out);
}

status session_open_bench(const conf *settings, const world *job, bool any_stream, session *out)
{
    TRY(meet_world(settings, job, SESSION_TRAIN, out));
    out->any_stream = any_stream;
    out->for_bench = true;
    return open_rest(NULL, out);
}

status session_meet(const conf *settings, const world *job, session *out)
{
    return meet_world(settings, job, SESSION_TRAIN, out);
}

status session_go_on(const resume_point *from, session *inout)
{
    return open_rest(from, inout);
}

status session_resume(const conf *settings, const world *job, const resume_point *from,
                      session *out)
{
    return open_from(settings, job, SESSION_TRAIN, from, out);
}

void session_close(session *run)
{
    receiver_close(&run->train);
    if (run->stream) {
        const backend_vtable *backend = run->device->backend;
        step_close(run);
        graph_replay_free(run->stream);
        optimizer_free(&run->optimizer, run->stream);
        generate_free(&run->generator);
        upload_ring_free(&run->upload_ring);
        model_free(&run->model, run->stream);
        if (run->params)
            params_release(run->params, run->stream);
        backend->release(run->device, run->sums.loss);
        backend->release(run->device, run->sums.weight);
        backend->release(run->device, run->sums.aux);
        backend->stream_free(&run->stream);
    }
    free(run->got);
    free(run->rows);
    free(run->endpoint);
    free(run->stream_options);
    free(run->recording);
    params_free(&run->params);
    base_done(&run->base);
    tokenizer_free(&run->tokenizer);
    mesh_close(&run->mesh);
    if (run->device)
        world_detach(run->world);
    device_close(&run->device);
    memset(run, 0, sizeof *run);
}

void session_check_first_loss(const session *run, double loss)
{
    double blind = log((double)run->dims.text.vocab);
    if (!isfinite(loss))
        log_warn("the first loss is not a finite number: do the weights of %s contain values that "
                 "are not finite?",
                 run->conf->model_path);
    else if (run->from_weights && !(loss <= NEAR_BLIND * blind))
        log_warn("the first loss %.3f is near ln(vocabulary) = %.3f, the loss of guessing, though "
                 "%s has weights: they may be untrained, or stored in another layout than the one "
                 "they were read in",
                 loss, blind, run->conf->model_path);
}
