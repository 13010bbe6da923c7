/* SPDX-License-Identifier: Apache-2.0 */
/* session_stream.c: implements session_parts.h and session_stream of session.h: asks for rows, and
 * checks that a run that goes on gets the rows after those that it has trained on. */
#include "trainer/run/session_parts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/json.h"
#include "common/model_folder/model_files.h"
#include "common/program/log.h"
#include "proto/row/row_order.h"
#include "trainer/plan/memory.h"
#include "trainer/run/stop.h"

static void log_waiting(const char *endpoint, double seconds, const char *why)
{
    log_info("waiting for prepd at %s, for %.0f s so far: %s", endpoint, seconds, why);
}

static void client_settings(const session *run, const char *stream_name, const char *options,
                            receiver_options *how)
{
    const conf *settings = run->conf;
    /* Training rows are divided over the consumers; held-out rows go to every rank. */
    const bool mine = strcmp(stream_name, "train") == 0;
    /* stop_signalled and not stop_asked, because a rank that stops waiting for rows tells the others
     * by a void step (step.h) or, while it evaluates, through eval/evaluate.c. */
    how->stopped = stop_signalled;
    how->reconnect_s = settings->prepd_reconnect_timeout;
    how->trains = mine;
    how->replay = (replay_options){.rank = mine ? run->mesh.place.consumer : 0,
                                   .ranks = mine ? (int)layout_consumers(&run->mesh.layout) : 1,
                                   .step_rows = mine ? settings->training_global_batch_size : 0};
    how->client = (client_options){
        .endpoint = run->endpoint,
        .keys = settings->prepd_keys,
        .stream = stream_name,
        .stream_options = options,
        .rank = mine ? run->mesh.place.consumer : 0,
        .ranks = mine ? (int)layout_consumers(&run->mesh.layout) : 1,
        .credit_bytes = settings->prepd_ahead_bytes,
        .rows_later = !mine || settings->training_steps > 0, /* else the schedule needs the count */
        .timeout_ms = (int)(settings->feed_timeout * 1000.0),
        .patient = true,
        .waiting = log_waiting,
        .stopped = stop_signalled,
    };
    /* Consumers take turns with the held-out rows, so there is a slot for the row of each. */
    const int64_t held_out = layout_consumers(&run->mesh.layout) + 1;
    how->slots = mine                    ? memory_rows_ahead(settings->training_local_batch_size)
                 : held_out > ROWS_AHEAD ? held_out
                                         : ROWS_AHEAD;
}

static status options_of(const conf *settings, char **out)
{
    hash128 model_digest;
    TRY(model_files_digest(settings, &model_digest));
    return conf_stream_json(settings, model_digest, out);
}

/* The data.generation of stream options; builds before that option had generation 0. */
static status generation_of(const char *options, const char *source, int64_t *out)
{
    json_value *value = NULL;
    TRY(json_parse(options, strlen(options), source, &value));
    *out = json_int(json_find(value, "data.generation"), 0);
    json_free(&value);
    return ST_OK;
}

/* Whether the data's generation was raised since the checkpoint. All other options must be the
 * same, or check_stream names the one that differs. */
static status check_generation(session *run, int64_t was)
{
    const int64_t is = run->conf->data_generation;
    if (is < was)
        return FAIL_IN(ST_CONFIG, run->from->path,
                       "data.generation is %" PRId64 ", but the run kept here has reached "
                       "generation %" PRId64 ", and it may only grow: set it to that or higher",
                       is, was);
    run->new_generation = is > was;
    if (run->new_generation)
        log_info("data.generation was raised from %" PRId64 " to %" PRId64 ": after step %" PRId64
                 " the run reads the changed data from their first row",
                 was, is, run->from->progress.step);
    return ST_OK;
}

/* A resumed run must have the stream it began with, or a later generation of it. options: NULL for
 * a recording. */
static status check_stream(session *run, const char *options)
{
    const resume_point *from = run->from;
    char *difference = NULL, *same = NULL;
    int64_t was;
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
    TRY(generation_of(from->progress.stream_options, from->path, &was));
    TRY(check_generation(run, was));
    conf earlier = *run->conf;
    earlier.data_generation = was;
    TRY(options_of(&earlier, &same));
    status st = conf_stream_diff(same, from->progress.stream_options, &difference);
    free(same);
    if (st != ST_OK || !difference)
        return st;
    st = FAIL_IN(ST_CONFIG, from->path,
                 "the run kept here has another stream: %s; give the same options as before, "
                 "or choose another job.dump_folder, or begin anew with "
                 "checkpoint.load_step 0",
                 difference);
    free(difference);
    return st;
}

/* Makes the train stream continue where the checkpoint left it. */
static void enter_stream(const session *run, receiver_options *how)
{
    const progress *reached = &run->from->progress;
    if (run->new_generation)
        return;
    how->replay.skip = (uint64_t)reached->rows;
    how->client.cursor = reached->cursor;
    how->client.quarantine = reached->quarantine;
}

status session_stream(const session *run, const char *stream_name, const conf *settings,
                      receiver **out)
{
    receiver_options how = {0};
    const bool trains = strcmp(stream_name, "train") == 0, resumes = run->from && trains;
    if (settings->feed_replay[0]) {
        client_settings(run, stream_name, NULL, &how);
        how.replay.path = settings->feed_replay;
        /* A recording is repeated until training.steps are done. Without training.steps, and for
         * an evaluation, it is read once. */
        bool endless = run->use == SESSION_TRAIN && settings->training_steps > 0;
        how.replay.loops = endless ? 0 : 1;
        if (resumes)
            enter_stream(run, &how);
        log_info("rows come from the recording %s", settings->feed_replay);
        return receiver_open(&how, out);
    }
    char *options = NULL;
    if (!run->any_stream)
        TRY(options_of(settings, &options));
    client_settings(run, stream_name, options, &how);
    if (resumes)
        enter_stream(run, &how);
    status st = trains ? row_broadcast_open(&run->mesh, settings->comm_init_timeout_seconds,
                                            &how.row_broadcast)
                       : ST_OK;
    if (st == ST_OK) {
        if (!how.row_broadcast || row_broadcast_is_source(how.row_broadcast))
            log_info("connecting to %s for the %s stream", run->endpoint, stream_name);
        st = receiver_open(&how, out);
    }
    free(options);
    return st;
}

/* Refuses a checkpoint whose cursor does not point at the row after those that were trained. Row
 * numbers of a recording start again in each of its rounds, so they are compared modulo its rows.
 */
static status check_entry(const session *run)
{
    json_value *welcome = NULL;
    const char *text = receiver_welcome(run->train);
    int64_t next;
    if (!run->from || run->new_generation || run->conf->feed_replay[0] ||
        run->from->progress.rows == 0)
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

/* Keeps the options of the stream, which every checkpoint records. */
static status keep_options(session *run)
{
    if (run->conf->feed_replay[0] || run->any_stream)
        return ST_OK;
    return options_of(run->conf, &run->stream_options);
}

status session_train_stream(session *run)
{
    TRY(keep_options(run));
    if (run->from) {
        TRY(check_stream(run, run->stream_options));
        run->earlier_steps =
            run->new_generation ? run->from->progress.step : run->from->progress.earlier_steps;
    }
    TRY(session_stream(run, "train", run->conf, &run->train));
    TRY(check_recording(run));
    return check_entry(run);
}

bool session_evaluates(const conf *settings)
{
    return settings->eval_enable && !settings->feed_replay[0];
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

/* The held-out stream is opened here for its shapes, and so that a missing split is found now and
 * not at the end of the run. */
status session_shapes(session *run)
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
    return ST_OK;
}
