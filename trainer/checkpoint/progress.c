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

void progress_done(progress *p)
{
    free(p->cursor);
    free(p->stream_options);
    free(p->recording);
    free(p->config);
    *p = (progress){0};
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

status progress_write(const progress *p, const char *folder)
{
    json_writer w;
    char *text = NULL;
    size_t size;
    json_writer_init(&w);
    json_begin_object(&w);
    json_put_key_int(&w, "version", STATE_VERSION);
    json_put_key_int(&w, "step", p->step);
    json_put_key_int(&w, "rows", p->rows);
    json_put_key_real(&w, "first_loss", p->first_loss);
    json_put_key_real(&w, "last_loss", p->last_loss);
    json_put_key_real(&w, "eval_loss", p->eval_loss);
    put_text(&w, "cursor", p->cursor);
    put_text(&w, "stream_options", p->stream_options);
    put_text(&w, "recording", p->recording);
    put_text(&w, "config", p->config);
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
    /* Checkpoints from before 2026-11-23 do not say. */
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
        st = FAIL_IN(ST_BAD_INPUT, path, "version %lld, this trainer reads version %d",
                     (long long)version, STATE_VERSION);
        goto failed;
    }
    TRY_OR(failed, json_want_int(v, "step", path, &p.step));
    TRY_OR(failed, json_want_int(v, "rows", path, &p.rows));
    if (p.step < 0 || p.rows < 0) {
        st = FAIL_IN(ST_BAD_INPUT, path, "a negative step or number of rows");
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

/* Rows of a step, as the stream's options say. */
static status step_rows_of(const char *stream_options, const char *path, int64_t *out)
{
    json_value *v = NULL;
    TRY(json_parse(stream_options, strlen(stream_options), path, &v));
    status st = json_want_int(v, "training.global_batch_size", path, out);
    json_free(&v);
    if (st == ST_OK && *out < 1)
        st = FAIL_IN(ST_BAD_INPUT, path, "training.global_batch_size is %lld", (long long)*out);
    return st;
}

status progress_check(const progress *p, const char *path)
{
    int64_t step_rows, row;
    const bool is_recording = !p->stream_options || !p->stream_options[0];
    if (is_recording)
        return p->rows >= p->step ? ST_OK
                                  : FAIL_IN(ST_BAD_INPUT, path, "it has %lld rows for %lld steps",
                                            (long long)p->rows, (long long)p->step);
    TRY(step_rows_of(p->stream_options, path, &step_rows));
    if (p->rows % step_rows != 0 || p->rows / step_rows != p->step)
        return FAIL_IN(ST_BAD_INPUT, path, "it has %lld rows for %lld steps of %lld rows each",
                       (long long)p->rows, (long long)p->step, (long long)step_rows);
    return p->rows == 0 ? ST_OK : cursor_read(p->cursor, path, "train", step_rows, &row);
}
