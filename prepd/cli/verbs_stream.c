/* SPDX-License-Identifier: Apache-2.0 */
/* verbs_stream.c: `prepd digest`, `record` and `sample`, which consume the stream of a private
 * daemon. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/words.h"
#include "common/json/json.h"
#include "common/program/bar.h"
#include "common/program/log.h"
#include "prepd/cli/verbs.h"
#include "prepd/cli/verbs_child.h"
#include "prepd/worker/worker.h"
#include "proto/message/record.h"

/* What the three verbs have in common. */
typedef struct stream_run {
    conf options;
    char **args;
    int n_args;
    child_daemon daemon;
    client *rows;
    arena memory; /* of the row in hand */
} stream_run;

static status open_stream_run(stream_run *run, int argc, char **argv)
{
    *run = (stream_run){0};
    arena_init(&run->memory, 0);
    return verb_conf(argc, argv, verb_needs_rows, &run->options, &run->args, &run->n_args);
}

static status open_stream(stream_run *run, const char *stream, int64_t from_row)
{
    TRY(child_start(&run->options, run->args, run->n_args, &run->daemon));
    return child_open(&run->daemon, stream, from_row, run->options.prepd_ahead_bytes, &run->rows);
}

static void close_stream_run(stream_run *run)
{
    status_note note = *status_last();
    child_stop(&run->daemon, &run->rows, &note);
    arena_done(&run->memory);
    if (run->args)
        conf_done(&run->options);
    free(run->args);
    status_set(&note);
}

/* --steps N and --from K. */
typedef struct step_range {
    int64_t steps, from;
} step_range;

static status take_range(int *argc, char **argv, step_range *out)
{
    const char *steps, *from;
    out->from = 0;
    TRY(verb_take(argc, argv, "--steps", &steps));
    TRY(verb_take(argc, argv, "--from", &from));
    TRY(verb_number("--steps", steps, 1, INT32_MAX, &out->steps));
    if (from)
        TRY(verb_number("--from", from, 0, INT32_MAX, &out->from));
    return ST_OK;
}

static void draw_bar(int64_t done, int64_t total, int64_t began_ns)
{
    bar_draw((double)done / (double)total, bar_seconds_left(began_ns, done, total),
             "row %lld of %lld", (long long)done, (long long)total);
}

/* Reads `count` rows, decoded and checked, and chains their digests in stream order. */
static status digest_rows(stream_run *run, int64_t count, hash128 *out, int64_t *out_rows)
{
    hash128 chain = hash_bytes("", 0);
    int64_t k = 0;
    const int64_t began_ns = clock_ns();
    for (; k < count; k++) {
        row one;
        frame head;
        hash128 digest;
        arena_reset(&run->memory);
        status st = client_next(run->rows, &run->memory, &one, &head, NULL);
        if (st == ST_END)
            break;
        TRY(st);
        TRY(row_digest(&one, &digest));
        chain = hash_chain(chain, digest);
        draw_bar(k + 1, count, began_ns);
    }
    *out = chain;
    *out_rows = k;
    return ST_OK;
}

status verb_digest(int argc, char **argv)
{
    stream_run run;
    step_range range;
    status st = ST_OK;
    hash128 chain;
    int64_t rows;
    char text[HASH_TEXT];
    TRY(take_range(&argc, argv, &range));
    TRY(open_stream_run(&run, argc, argv));
    const int64_t batch = run.options.training_global_batch_size;
    TRY_OR(done, open_stream(&run, "train", range.from * batch));
    TRY_OR(done, digest_rows(&run, range.steps * batch, &chain, &rows));
    if (rows < range.steps * batch)
        log_warn("the stream ended after %lld of %lld rows", (long long)rows,
                 (long long)(range.steps * batch));
    hash_print(chain, text);
    bar_clear();
    printf("%s\n", text);
done:
    close_stream_run(&run);
    return st;
}

static status write_rows(stream_run *run, record_writer *writer, int64_t count, int64_t *out_rows)
{
    wire_msg *message = NULL;
    status st = ST_OK;
    int64_t k = 0;
    const int64_t began_ns = clock_ns();
    *out_rows = 0;
    TRY(wire_msg_new(&message));
    for (; k < count; k++) {
        wire_msg_clear(message);
        st = client_next_raw(run->rows, message, NULL);
        if (st == ST_END)
            break;
        TRY_OR(done, st);
        TRY_OR(done, record_add(writer, message));
        draw_bar(k + 1, count, began_ns);
    }
    st = ST_OK;
    *out_rows = k;
done:
    wire_msg_free(&message);
    return st;
}

status verb_record(int argc, char **argv)
{
    stream_run run;
    step_range range;
    const char *out;
    status st = ST_OK;
    int64_t rows;
    record_writer *writer = NULL;
    const bool overwrite = verb_take_overwrite(&argc, argv);
    TRY(take_range(&argc, argv, &range));
    TRY(verb_take(&argc, argv, "--out", &out));
    if (!out)
        return FAIL(ST_USAGE, "record needs --out FILE, the file to write");
    TRY(verb_may_write(out, overwrite));
    TRY(open_stream_run(&run, argc, argv));
    const int64_t batch = run.options.training_global_batch_size;
    TRY_OR(done, open_stream(&run, "train", range.from * batch));
    TRY_OR(done, record_create(out, client_welcome(run.rows), &writer));
    TRY_OR(done, write_rows(&run, writer, range.steps * batch, &rows));
    TRY_OR(done, record_finish(&writer));
    bar_clear();
    printf("%s: %lld rows\n", escape_text(out).text, (long long)rows);
done:
    if (writer)
        record_abandon(&writer);
    close_stream_run(&run);
    return st;
}

/* The failure of an index that is too large. WELCOME has the number of samples. */
static status past_the_end(const stream_run *run, int64_t index)
{
    json_value *welcome = NULL;
    TRY(json_parse(client_welcome(run->rows), strlen(client_welcome(run->rows)), "welcome",
                   &welcome));
    const int64_t samples = json_int(json_find(welcome, "samples"), 0);
    json_free(&welcome);
    return FAIL(ST_USAGE,
                "--index %lld is past the last sample: the data set has %lld samples, 0 to %lld "
                "(data.limit included)",
                (long long)index, (long long)samples, (long long)samples - 1);
}

/* Fails if the sample is quarantined or refused: the row's metadata then has the cause. */
static status refuse_bad(const row *one, int64_t index)
{
    json_value *list = NULL;
    status st = ST_OK;
    if (!one->quarantine || !one->quarantine[0])
        return ST_OK;
    TRY(json_parse(one->quarantine, strlen(one->quarantine), "quarantine", &list));
    if (json_count(list) > 0) {
        const json_value *question = json_item(list, 0);
        st = FAIL(ST_BAD_INPUT, "sample %lld (%s) cannot be used: %s", (long long)index,
                  json_text(json_find(question, "name"), "unnamed"),
                  json_text(json_find(question, "cause"), "no cause given"));
    }
    json_free(&list);
    return st;
}

status verb_sample(int argc, char **argv)
{
    stream_run run;
    const char *number, *out, *png, *self = argv[-1];
    int64_t index;
    status st = ST_OK;
    row one;
    const bool overwrite = verb_take_overwrite(&argc, argv);
    TRY(verb_take(&argc, argv, "--index", &number));
    TRY(verb_take(&argc, argv, "--out", &out));
    TRY(verb_take(&argc, argv, "--png", &png));
    TRY(verb_number("--index", number, 0, INT64_MAX, &index));
    if (!out && !png)
        return FAIL(ST_USAGE, "sample needs --out FILE.safetensors, the file to write, or --png "
                              "FILE.png or FOLDER, for its pictures");
    if (out)
        TRY(verb_may_write(out, overwrite));
    if (png)
        TRY(verb_may_write(png, overwrite));
    TRY(open_stream_run(&run, argc, argv));
    TRY_OR(done, open_stream(&run, "sample", index));
    st = client_next(run.rows, &run.memory, &one, NULL, NULL);
    if (st == ST_END)
        st = past_the_end(&run, index);
    TRY_OR(done, st);
    TRY_OR(done, refuse_bad(&one, index));
    if (png)
        TRY_OR(done, row_png_write(&one, png, self));
    if (out) {
        TRY_OR(done, row_save(&one, out));
        printf("%s: %lld tokens, %lld patches, %lld images\n", escape_text(out).text,
               (long long)one.n_tokens, (long long)(one.n_patches + one.n_video_patches),
               (long long)one.n_items);
    }
done:
    close_stream_run(&run);
    return st;
}

/* `prepd plan`, which shows what the stream will look like. Only image headers are
 * decoded, for the index. A private daemon, which has the index and the plan, writes the report. */

static status print_report(const char *welcome)
{
    json_value *value = NULL;
    const char *report;
    int64_t samples, planning_ns;
    TRY(json_parse(welcome, strlen(welcome), "welcome", &value));
    status st = json_want_text(value, "report", "welcome", &report);
    if (st == ST_OK)
        st = json_want_int(value, "samples", "welcome", &samples);
    if (st == ST_OK)
        st = json_want_int(value, "planning_ns", "welcome", &planning_ns);
    if (st == ST_OK)
        printf("%splanning: %.2f s of CPU time for epoch 0, %.2f us a sample\n", report,
               (double)planning_ns / 1e9,
               (double)planning_ns / 1e3 / (samples ? (double)samples : 1));
    json_free(&value);
    return st;
}

status verb_plan(int argc, char **argv)
{
    conf options;
    char **args;
    int n_args;
    child_daemon daemon = {0};
    client *stream = NULL;
    TRY(verb_conf(argc, argv, verb_needs_rows, &options, &args, &n_args));
    status st = child_start(&options, args, n_args, &daemon);
    if (st == ST_OK) {
        st = child_report(&daemon, &stream);
        if (st == ST_OK)
            st = print_report(client_welcome(stream));
        status_note note = *status_last();
        child_stop(&daemon, &stream, &note);
        status_set(&note);
    }
    free(args);
    conf_done(&options);
    return st;
}
