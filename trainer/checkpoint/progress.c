/* progress.c: see progress.h. state.json is one JSON object with a version and the members of the
 * struct by name. */
#include "trainer/checkpoint/progress.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/json.h"
#include "proto/cursor.h"
#include "trainer/checkpoint/hf_write.h"

static const char name[] = "state.json";
enum { STATE_VERSION = 1 };

void progress_done(progress *state)
{
    free(state->cursor);
    free(state->stream_options);
    free(state->recording);
    free(state->config);
    *state = (progress){0};
}

status progress_set_text(char **field, const char *text)
{
    char *copy = strdup(text);
    if (!copy)
        return FAIL(ST_NO_MEMORY, "no memory for the state of the run");
    free(*field);
    *field = copy;
    return ST_OK;
}

status progress_copy(const progress *from, progress *out)
{
    progress p = *from;
    p.cursor = p.stream_options = p.recording = p.config = NULL;
    status st = progress_set_text(&p.cursor, from->cursor ? from->cursor : "");
    if (st == ST_OK)
        st = progress_set_text(&p.stream_options, from->stream_options ? from->stream_options : "");
    if (st == ST_OK)
        st = progress_set_text(&p.recording, from->recording ? from->recording : "");
    if (st == ST_OK)
        st = progress_set_text(&p.config, from->config ? from->config : "");
    if (st != ST_OK) {
        progress_done(&p);
        return st;
    }
    progress_done(out);
    *out = p;
    return ST_OK;
}

static void put_text(json_writer *w, const char *key, const char *text)
{
    json_put_key_cstr(w, key, text ? text : "");
}

status progress_write(const progress *state, const char *folder)
{
    json_writer w;
    char *text = NULL;
    size_t size;
    json_writer_init(&w);
    json_begin_object(&w);
    json_put_key_int(&w, "version", STATE_VERSION);
    json_put_key_int(&w, "step", state->step);
    json_put_key_int(&w, "rows", state->rows);
    json_put_key_real(&w, "first_loss", state->first_loss);
    json_put_key_real(&w, "last_loss", state->last_loss);
    json_put_key_real(&w, "eval_loss", state->eval_loss);
    put_text(&w, "cursor", state->cursor);
    put_text(&w, "stream_options", state->stream_options);
    put_text(&w, "recording", state->recording);
    put_text(&w, "config", state->config);
    json_end_object(&w);
    status st = json_writer_take(&w, &text, &size);
    if (st == ST_OK)
        st = hf_write_text(folder, name, text, size);
    free(text);
    json_writer_done(&w);
    return st;
}

static status read_texts(const json_value *v, const char *path, progress *p)
{
    const struct {
        const char *key;
        char **to;
    } texts[] = {
        {"cursor", &p->cursor}, {"stream_options", &p->stream_options}, {"config", &p->config}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const char *text;
        TRY(json_want_text(v, texts[i].key, path, &text));
        TRY(progress_set_text(texts[i].to, text));
    }
    /* May be missing: older trainers did not write it. */
    return progress_set_text(&p->recording, json_text(json_find(v, "recording"), ""));
}

status progress_read(const char *folder, progress *out)
{
    char path[STATUS_PATH_MAX];
    json_value *v = NULL;
    progress p = {0};
    int64_t version;
    status st;
    TRY(hf_path(path, folder, name));
    TRY(json_load(path, &v));
    TRY_OR(failed, json_want_int(v, "version", path, &version));
    if (version != STATE_VERSION) {
        st = FAIL_IN(ST_BAD_INPUT, path,
                     "the file has version %lld, but this trainer reads "
                     "version %d",
                     (long long)version, STATE_VERSION);
        goto failed;
    }
    TRY_OR(failed, json_want_int(v, "step", path, &p.step));
    TRY_OR(failed, json_want_int(v, "rows", path, &p.rows));
    if (p.step < 0 || p.rows < 0) {
        st = FAIL_IN(ST_BAD_INPUT, path, "the step or the number of rows is negative");
        goto failed;
    }
    p.first_loss = json_real(json_find(v, "first_loss"), NAN);
    p.last_loss = json_real(json_find(v, "last_loss"), NAN);
    p.eval_loss = json_real(json_find(v, "eval_loss"), NAN);
    TRY_OR(failed, read_texts(v, path, &p));
    json_free(&v);
    *out = p;
    return ST_OK;
failed:
    progress_done(&p);
    json_free(&v);
    return st;
}

/* The rows of a step, as the options of the stream say. */
static status step_rows_of(const char *stream_options, const char *path, int64_t *out)
{
    json_value *v = NULL;
    TRY(json_parse(stream_options, strlen(stream_options), path, &v));
    status st = json_want_int(v, "training.global_batch_size", path, out);
    json_free(&v);
    if (st == ST_OK && *out < 1)
        st = FAIL_IN(ST_BAD_INPUT, path,
                     "its training.global_batch_size is %lld, which is less "
                     "than 1",
                     (long long)*out);
    return st;
}

status progress_check(const progress *state, const char *path)
{
    int64_t step_rows, row;
    const bool is_recording = !state->stream_options || !state->stream_options[0];
    if (is_recording)
        return state->rows >= state->step
                   ? ST_OK
                   : FAIL_IN(ST_BAD_INPUT, path,
                             "it says that %lld rows were enough for %lld steps",
                             (long long)state->rows, (long long)state->step);
    TRY(step_rows_of(state->stream_options, path, &step_rows));
    if (state->rows % step_rows != 0 || state->rows / step_rows != state->step)
        return FAIL_IN(ST_BAD_INPUT, path,
                       "it says that %lld rows were taken by %lld steps of %lld rows each",
                       (long long)state->rows, (long long)state->step, (long long)step_rows);
    return state->rows == 0 ? ST_OK : cursor_read(state->cursor, path, "train", step_rows, &row);
}
