/* verbs_stream.c: `prepd digest`, `record` and `sample`, which consume the stream of a private
 * daemon. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/json/json.h"
#include "common/program/bar.h"
#include "common/program/log.h"
#include "common/base/visible.h"
#include "prepd/worker/row_png.h"
#include "prepd/cli/verbs.h"
#include "prepd/cli/verbs_child.h"
#include "proto/record.h"

/* What the three verbs have in common. */
typedef struct stream_run {
    conf options;
    char **args;
    int n_args;
    child_daemon daemon;
    client *rows;
    arena memory; /* of the row in hand */
} stream_run;

static status open_stream_run(stream_run *r, int argc, char **argv)
{
    *r = (stream_run){0};
    arena_init(&r->memory, 0);
    return verb_conf(argc, argv, verb_needs_rows, &r->options, &r->args, &r->n_args);
}

static status open_stream(stream_run *r, const char *stream, int64_t from_row)
{
    TRY(child_start(&r->options, r->args, r->n_args, &r->daemon));
    return child_open(&r->daemon, stream, from_row, r->options.prepd_ahead_bytes, &r->rows);
}

static void close_stream_run(stream_run *r)
{
    status_note note = *status_last();
    child_stop(&r->daemon, &r->rows, &note);
    arena_done(&r->memory);
    if (r->args)
        conf_done(&r->options);
    free(r->args);
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

/* Reads n rows, decoded and checked, and chains their digests in stream order. */
static status digest_rows(stream_run *r, int64_t n, hash128 *out, int64_t *out_rows)
{
    hash128 chain = hash_bytes("", 0);
    int64_t k = 0;
    const int64_t began_ns = clock_ns();
    for (; k < n; k++) {
        row one;
        frame head;
        hash128 digest;
        arena_reset(&r->memory);
        status st = client_next(r->rows, &r->memory, &one, &head, NULL);
        if (st == ST_END)
            break;
        TRY(st);
        TRY(row_digest(&one, &digest));
        chain = hash_chain(chain, digest);
        draw_bar(k + 1, n, began_ns);
    }
    *out = chain;
    *out_rows = k;
    return ST_OK;
}

status verb_digest(int argc, char **argv)
{
    stream_run r;
    step_range range;
    status st = ST_OK;
    hash128 chain;
    int64_t rows;
    char text[HASH_TEXT];
    TRY(take_range(&argc, argv, &range));
    TRY(open_stream_run(&r, argc, argv));
    const int64_t g = r.options.training_global_batch_size;
    TRY_OR(done, open_stream(&r, "train", range.from * g));
    TRY_OR(done, digest_rows(&r, range.steps * g, &chain, &rows));
    if (rows < range.steps * g)
        log_warn("the stream ended after %lld of %lld rows", (long long)rows,
                 (long long)(range.steps * g));
    hash_print(chain, text);
    bar_clear();
    printf("%s\n", text);
done:
    close_stream_run(&r);
    return st;
}

static status write_rows(stream_run *r, record_writer *w, int64_t n, int64_t *out_rows)
{
    wire_msg *m = NULL;
    status st = ST_OK;
    int64_t k = 0;
    const int64_t began_ns = clock_ns();
    TRY(wire_msg_new(&m));
    for (; k < n; k++) {
        wire_msg_clear(m);
        st = client_next_raw(r->rows, m, NULL);
        if (st == ST_END)
            break;
        TRY_OR(done, st);
        TRY_OR(done, record_add(w, m));
        draw_bar(k + 1, n, began_ns);
    }
    st = ST_OK;
    *out_rows = k;
done:
    wire_msg_free(&m);
    return st;
}

status verb_record(int argc, char **argv)
{
    stream_run r;
    step_range range;
    const char *out;
    status st = ST_OK;
    int64_t rows;
    record_writer *w = NULL;
    const bool overwrite = verb_take_overwrite(&argc, argv);
    TRY(take_range(&argc, argv, &range));
    TRY(verb_take(&argc, argv, "--out", &out));
    if (!out)
        return FAIL(ST_USAGE, "record needs --out FILE, the file to write");
    TRY(verb_may_write(out, overwrite));
    TRY(open_stream_run(&r, argc, argv));
    const int64_t g = r.options.training_global_batch_size;
    TRY_OR(done, open_stream(&r, "train", range.from * g));
    TRY_OR(done, record_create(out, client_welcome(r.rows), &w));
    TRY_OR(done, write_rows(&r, w, range.steps * g, &rows));
    TRY_OR(done, record_finish(&w));
    bar_clear();
    printf("%s: %lld rows\n", escape_text(out).text, (long long)rows);
done:
    if (w)
        record_abandon(&w);
    close_stream_run(&r);
    return st;
}

/* The failure of an index that is too large. WELCOME has the number of samples. */
static status past_the_end(const stream_run *r, int64_t index)
{
    json_value *welcome = NULL;
    TRY(json_parse(client_welcome(r->rows), strlen(client_welcome(r->rows)), "welcome", &welcome));
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
        const json_value *q = json_item(list, 0);
        st = FAIL(ST_BAD_INPUT, "sample %lld (%s) cannot be used: %s", (long long)index,
                  json_text(json_find(q, "name"), "unnamed"),
                  json_text(json_find(q, "cause"), "no cause given"));
    }
    json_free(&list);
    return st;
}

status verb_sample(int argc, char **argv)
{
    stream_run r;
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
    TRY(open_stream_run(&r, argc, argv));
    TRY_OR(done, open_stream(&r, "sample", index));
    st = client_next(r.rows, &r.memory, &one, NULL, NULL);
    if (st == ST_END)
        st = past_the_end(&r, index);
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
    close_stream_run(&r);
    return st;
}
