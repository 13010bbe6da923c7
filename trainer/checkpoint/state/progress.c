/* SPDX-License-Identifier: Apache-2.0 */
/* progress.c: see progress.h. state.json is one JSON object with a version and the members of the
 * struct by name. */
#include "trainer/checkpoint/state/progress.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/json.h"
#include "proto/row/bad_samples.h"
#include "proto/row/row_order.h"
#include "trainer/checkpoint/hf/hf_write.h"

static const char name[] = "state.json", list_name[] = "quarantine.json";
enum { STATE_VERSION = 1 };

void progress_done(progress *state)
{
    free(state->cursor);
    free(state->quarantine);
    free(state->stream_options);
    free(state->recording);
    free(state->config);
    free(state->choices);
    free(state->unit_share);
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

status progress_set_shares(progress *state, const double *share, int64_t n_units)
{
    if (n_units != state->n_units) {
        double *room = n_units > 0 ? malloc((size_t)n_units * sizeof *room) : NULL;
        if (n_units > 0 && !room)
            return FAIL(ST_NO_MEMORY, "no memory for the state of the run");
        free(state->unit_share);
        state->unit_share = room;
        state->n_units = n_units;
    }
    if (n_units > 0)
        memcpy(state->unit_share, share, (size_t)n_units * sizeof *share);
    return ST_OK;
}

status progress_copy(const progress *from, progress *out)
{
    progress done = *from;
    done.cursor = done.quarantine = done.stream_options = done.recording = done.config =
        done.choices = NULL;
    done.unit_share = NULL;
    done.n_units = 0;
    const struct {
        const char *from;
        char **to;
    } texts[] = {{from->cursor, &done.cursor},
                 {from->quarantine, &done.quarantine},
                 {from->stream_options, &done.stream_options},
                 {from->recording, &done.recording},
                 {from->config, &done.config},
                 {from->choices, &done.choices}};
    status st = progress_set_shares(&done, from->unit_share, from->n_units);
    for (size_t i = 0; i < sizeof texts / sizeof *texts && st == ST_OK; i++)
        st = progress_set_text(texts[i].to, texts[i].from ? texts[i].from : "");
    if (st != ST_OK) {
        progress_done(&done);
        return st;
    }
    progress_done(out);
    *out = done;
    return ST_OK;
}

static void put_text(json_writer *writer, const char *key, const char *text)
{
    json_put_key_cstr(writer, key, text ? text : "");
}

static void put_shares(json_writer *writer, const progress *state)
{
    if (state->n_units == 0)
        return;
    json_begin_key_array(writer, "unit_share");
    for (int64_t i = 0; i < state->n_units; i++)
        json_put_real(writer, state->unit_share[i]);
    json_end_array(writer);
}

/* Names the file of the quarantine by what is in it. */
static status put_list_name(json_writer *writer, const char *quarantine)
{
    bad_samples list = {0};
    char hash[HASH_TEXT];
    const status st = bad_samples_read_text(&list, quarantine, list_name);
    hash_print(hash_bytes(quarantine, strlen(quarantine)), hash);
    json_begin_key_object(writer, "quarantine");
    json_put_key_int(writer, "count", list.n);
    json_put_key_cstr(writer, "hash", hash);
    json_end_object(writer);
    bad_samples_done(&list);
    return st;
}

/* listed: the quarantine is written as it is; otherwise what names its file. */
static status write_text(const progress *state, bool listed, char **out)
{
    json_writer writer;
    status st = ST_OK;
    size_t size;
    json_writer_init(&writer);
    json_begin_object(&writer);
    json_put_key_int(&writer, "version", STATE_VERSION);
    json_put_key_int(&writer, "step", state->step);
    json_put_key_int(&writer, "rows", state->rows);
    if (state->earlier_steps > 0)
        json_put_key_int(&writer, "earlier_steps", state->earlier_steps);
    json_put_key_real(&writer, "first_loss", state->first_loss);
    json_put_key_real(&writer, "last_loss", state->last_loss);
    json_put_key_real(&writer, "eval_loss", state->eval_loss);
    put_text(&writer, "cursor", state->cursor);
    if (listed || !state->quarantine || !state->quarantine[0])
        put_text(&writer, "quarantine", state->quarantine);
    else
        st = put_list_name(&writer, state->quarantine);
    put_text(&writer, "stream_options", state->stream_options);
    put_text(&writer, "recording", state->recording);
    put_text(&writer, "config", state->config);
    put_text(&writer, "choices", state->choices);
    put_shares(&writer, state);
    json_end_object(&writer);
    if (st == ST_OK)
        st = json_writer_take(&writer, out, &size);
    json_writer_done(&writer);
    return st;
}

status progress_text(const progress *state, char **out)
{
    return write_text(state, true, out);
}

status progress_write(const progress *state, const char *folder)
{
    const char *list = state->quarantine;
    char *text;
    if (list && list[0])
        TRY(hf_write_text(folder, list_name, list, strlen(list)));
    TRY(write_text(state, false, &text));
    const status st = hf_write_text(folder, name, text, strlen(text));
    free(text);
    return st;
}

/* Reads the file that a state names by its count and hash. */
static status read_list(const json_value *named, const char *folder, char **out)
{
    char path[STATUS_PATH_MAX], found[HASH_TEXT];
    const char *wanted;
    int64_t count;
    hash128 digest;
    bad_samples list = {0};
    json_value *value = NULL;
    TRY(hf_path(path, folder, list_name));
    TRY(json_want_text(named, "hash", path, &wanted));
    TRY(json_want_int(named, "count", path, &count));
    TRY(hash_file(path, &digest));
    hash_print(digest, found);
    if (strcmp(found, wanted) != 0)
        return FAIL_IN(ST_BAD_INPUT, path, "its hash is %s, but state.json names %.32s", found,
                       wanted);
    TRY(json_load(path, &value));
    status st = bad_samples_read(&list, value, path);
    json_free(&value);
    if (st == ST_OK && list.n != count)
        st = FAIL_IN(ST_BAD_INPUT, path, "it has %lld bad samples, but state.json names %lld",
                     (long long)list.n, (long long)count);
    free(*out);
    *out = NULL;
    if (st == ST_OK)
        st = bad_samples_write(&list, out);
    bad_samples_done(&list);
    return st;
}

static status read_texts(const json_value *value, const char *path, progress *done)
{
    const struct {
        const char *key;
        char **to;
    } texts[] = {{"cursor", &done->cursor},
                 {"stream_options", &done->stream_options},
                 {"recording", &done->recording},
                 {"config", &done->config},
                 {"choices", &done->choices}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const char *text;
        TRY(json_want_text(value, texts[i].key, path, &text));
        TRY(progress_set_text(texts[i].to, text));
    }
    /* An object names the file of the list (read_list). */
    return progress_set_text(&done->quarantine, json_text(json_find(value, "quarantine"), ""));
}

/* They may be missing: see progress.h. */
static status read_shares(const json_value *value, const char *path, progress *done)
{
    const json_value *list;
    if (!json_find(value, "unit_share"))
        return ST_OK;
    TRY(json_want_array(value, "unit_share", path, &list));
    const size_t count = json_count(list);
    if (count == 0)
        return ST_OK;
    done->unit_share = calloc(count, sizeof *done->unit_share);
    if (!done->unit_share)
        return FAIL(ST_NO_MEMORY, "no memory for the state of the run");
    done->n_units = (int64_t)count;
    for (size_t i = 0; i < count; i++) {
        const double share = json_real(json_item(list, i), NAN);
        if (!(share >= 0 && share < 2)) /* at most 1, but for rounding */
            return FAIL_IN(ST_BAD_INPUT, path, "unit_share[%zu] is not a share", i);
        done->unit_share[i] = share;
    }
    return ST_OK;
}

static status read_state(const json_value *value, const char *path, progress *done)
{
    int64_t version;
    TRY(json_want_int(value, "version", path, &version));
    if (version != STATE_VERSION)
        return FAIL_IN(ST_BAD_INPUT, path,
                       "the file has version %lld, but this trainer reads "
                       "version %d",
                       (long long)version, STATE_VERSION);
    TRY(json_want_int(value, "step", path, &done->step));
    TRY(json_want_int(value, "rows", path, &done->rows));
    done->earlier_steps = json_int(json_find(value, "earlier_steps"), 0);
    if (done->step < 0 || done->rows < 0 || done->earlier_steps < 0 ||
        done->earlier_steps > done->step)
        return FAIL_IN(ST_BAD_INPUT, path, "the steps or the number of rows are impossible");
    done->first_loss = json_real(json_find(value, "first_loss"), NAN);
    done->last_loss = json_real(json_find(value, "last_loss"), NAN);
    done->eval_loss = json_real(json_find(value, "eval_loss"), NAN);
    TRY(read_shares(value, path, done));
    return read_texts(value, path, done);
}

/* folder: where the quarantine's file is; NULL: the state has the list inside. */
static status take_state(json_value *value, const char *path, const char *folder, progress *out)
{
    progress done = {0};
    status st = read_state(value, path, &done);
    const json_value *list = json_given(value, "quarantine");
    if (st == ST_OK && folder && list && json_typeof(list) == JSON_OBJECT)
        st = read_list(list, folder, &done.quarantine);
    json_free(&value);
    if (st == ST_OK)
        *out = done;
    else
        progress_done(&done);
    return st;
}

status progress_parse(const char *text, const char *path, progress *out)
{
    json_value *value = NULL;
    TRY(json_parse(text, strlen(text), path, &value));
    return take_state(value, path, NULL, out);
}

status progress_read(const char *folder, progress *out)
{
    char path[STATUS_PATH_MAX];
    json_value *value = NULL;
    TRY(hf_path(path, folder, name));
    TRY(json_load(path, &value));
    return take_state(value, path, folder, out);
}

/* The rows of a step, as the options of the stream say. */
static status step_rows_of(const char *stream_options, const char *path, int64_t *out)
{
    json_value *value = NULL;
    TRY(json_parse(stream_options, strlen(stream_options), path, &value));
    status st = json_want_int(value, "training.global_batch_size", path, out);
    json_free(&value);
    if (st == ST_OK && *out < 1)
        st = FAIL_IN(ST_BAD_INPUT, path,
                     "its training.global_batch_size is %lld, which is less "
                     "than 1",
                     (long long)*out);
    return st;
}

static status check_quarantine(const progress *state, const char *path)
{
    bad_samples list = {0};
    const status st = bad_samples_read_text(&list, state->quarantine, path);
    bad_samples_done(&list);
    return st;
}

status progress_check(const progress *state, const char *path)
{
    int64_t step_rows, row;
    const int64_t steps = state->step - state->earlier_steps;
    const bool is_recording = !state->stream_options || !state->stream_options[0];
    if (is_recording)
        return state->rows >= steps
                   ? ST_OK
                   : FAIL_IN(ST_BAD_INPUT, path, "it has %lld rows as enough for %lld steps",
                             (long long)state->rows, (long long)steps);
    TRY(step_rows_of(state->stream_options, path, &step_rows));
    if (state->rows % step_rows != 0 || state->rows / step_rows != steps)
        return FAIL_IN(ST_BAD_INPUT, path,
                       "it has %lld rows as taken by %lld steps of %lld rows each",
                       (long long)state->rows, (long long)steps, (long long)step_rows);
    TRY(check_quarantine(state, path));
    return state->rows == 0 ? ST_OK : cursor_read(state->cursor, path, "train", step_rows, &row);
}

/* ---- changed options, compared line by line in the text that conf_print writes ---- */

enum { KEY_MAX = 128, VALUE_MAX = 4096 };

status config_text(const conf *options, char **out)
{
    char *text = NULL;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    if (!file)
        return FAIL(ST_NO_MEMORY, "no memory for the options as text");
    conf_print(options, file);
    if (fclose(file) != 0) {
        free(text);
        return FAIL(ST_NO_MEMORY, "no memory for the options as text");
    }
    *out = text;
    return ST_OK;
}

static void copy_part(char *to, size_t room, const char *from, size_t size)
{
    snprintf(to, room, "%.*s", (int)size, from);
}

/* Finds the line "key: value" in a text and copies its value; false: there is no such line. */
static bool find_value(const char *text, const char *key, char out[VALUE_MAX])
{
    const size_t length = strlen(key);
    out[0] = 0;
    for (const char *line = text; *line;) {
        const size_t size = strcspn(line, "\n");
        if (size > length + 1 && strncmp(line, key, length) == 0 && line[length] == ':') {
            copy_part(out, VALUE_MAX, line + length + 2, size - length - 2);
            return true;
        }
        line += size + (line[size] == '\n');
    }
    return false;
}

static bool changes_steps(const char *key)
{
    return strncmp(key, "job.", 4) != 0 && strncmp(key, "checkpoint.", 11) != 0;
}

void config_changes(const char *was, const char *now, config_change each, void *user)
{
    for (const char *line = now; *line;) {
        const size_t size = strcspn(line, "\n"), colon = strcspn(line, ":");
        char key[KEY_MAX], before[VALUE_MAX], after[VALUE_MAX];
        if (colon + 2 <= size && line[0] != '#') {
            copy_part(key, sizeof key, line, colon);
            copy_part(after, sizeof after, line + colon + 2, size - colon - 2);
            find_value(was, key, before);
            if (changes_steps(key) && strcmp(before, after) != 0)
                each(user, key, before, after);
        }
        line += size + (line[size] == '\n');
    }
}
