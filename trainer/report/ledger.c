/* SPDX-License-Identifier: Apache-2.0 */
/* ledger.c: writes the ledger line by line, reads it back, and compares two entries. */
#include "trainer/report/ledger.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/conf/conf.h"
#include "common/json/json.h"

static const char file_name[] = "ledger.jsonl";

struct ledger {
    FILE *file;
    bool with_ids;
    bool cut;        /* the last line was cut short: the next one must begin on a line of its own */
    char states[64]; /* how the run keeps its states; "": as by default */
    char path[STATUS_PATH_MAX];
};

static status path_of(const char *folder, char out[STATUS_PATH_MAX])
{
    if (snprintf(out, STATUS_PATH_MAX, "%s/%s", folder, file_name) >= STATUS_PATH_MAX)
        return FAIL_IN(ST_CANT_CREATE, folder, "the path of the ledger is too long");
    return ST_OK;
}

static void print_states(const conf *options, char *out, size_t size)
{
    const bool coded = options->optimizer_states == STATES_INT8;
    const bool rounded = options->training_master == MASTER_BF16;
    snprintf(out, size, "%s%s%s", coded ? " states=int8" : "", rounded ? " master=bf16" : "",
             options->optimizer_in_backward ? " in_backward=true" : "");
    if (out[0])
        memmove(out, out + 1, strlen(out)); /* the first blank */
}

status ledger_open(const conf *options, ledger **out)
{
    ledger *entries = calloc(1, sizeof *entries);
    if (!entries)
        return FAIL(ST_NO_MEMORY, "no memory for the ledger");
    status st = path_of(options->job_dump_folder, entries->path);
    entries->with_ids = options->metrics_ledger_ids;
    print_states(options, entries->states, sizeof entries->states);
    if (st == ST_OK && !(entries->file = fopen(entries->path, "a+e")))
        st = FAIL_IN(ST_CANT_CREATE, entries->path, "%s", strerror(errno));
    /* If the last line was cut short, end it, so that the next one begins on its own line. */
    if (st == ST_OK && fseek(entries->file, -1, SEEK_END) == 0) {
        int last = fgetc(entries->file);
        if (last != '\n' &&
            (fseek(entries->file, 0, SEEK_END) != 0 || fputc('\n', entries->file) == EOF))
            st = FAIL_IN(ST_IO, entries->path, "write failed: %s", strerror(errno));
    }
    if (st != ST_OK) {
        ledger_close(&entries);
        return st;
    }
    *out = entries;
    return ST_OK;
}

void ledger_close(ledger **held)
{
    ledger *entries = *held;
    if (!entries)
        return;
    if (entries->file)
        fclose(entries->file);
    free(entries);
    *held = NULL;
}

status ledger_sync(ledger *entries)
{
    return fsync(fileno(entries->file)) == 0
               ? ST_OK
               : FAIL_IN(ST_IO, entries->path, "fsync: %s", strerror(errno));
}

static void put_digest(json_writer *writer, const char *key, hash128 digest)
{
    char text[HASH_TEXT];
    hash_print(digest, text);
    json_put_key_cstr(writer, key, text);
}

status ledger_add(ledger *entries, const step_report *report, bool leaps, const char *choices)
{
    json_writer writer;
    char *text = NULL;
    json_writer_init(&writer);
    json_begin_object(&writer);
    json_put_key_int(&writer, "step", report->step);
    json_put_key_int(&writer, "documents", report->documents);
    put_digest(&writer, "samples", report->samples_digest);
    put_digest(&writer, "rows", report->rows_digest);
    json_put_key_real(&writer, "loss", report->loss);
    json_put_key_real(&writer, "grad_norm", report->grad_norm);
    json_put_key_bool(&writer, "skipped", report->skipped);
    if (report->updated[0])
        json_put_key_cstr(&writer, "partial", report->updated);
    if (entries->states[0])
        json_put_key_cstr(&writer, "states", entries->states);
    if (leaps)
        json_put_key_bool(&writer, "leaps", true);
    if (choices[0])
        json_put_key_cstr(&writer, "choices", choices);
    if (entries->with_ids || report->skipped || leaps) {
        json_begin_key_array(&writer, "ids");
        for (int64_t i = 0; i < report->n_samples; i++)
            json_put_int(&writer, (int64_t)report->sample[i]);
        json_end_array(&writer);
    }
    json_end_object(&writer);
    TRY(json_writer_take(&writer, &text, NULL));
    entries->cut = fprintf(entries->file, "%s%s\n", entries->cut ? "\n" : "", text) < 0 ||
                   fflush(entries->file) != 0;
    free(text);
    return !entries->cut ? ST_OK
                         : FAIL_IN(ST_IO, entries->path, "write failed: %s", strerror(errno));
}

static double real_of(const json_value *value, const char *key)
{
    return json_real(json_find(value, key), NAN);
}

/* False for a line that was cut short or is no entry of a ledger. */
static bool parse_line(const char *line, size_t size, const char *path, ledger_entry *out)
{
    json_value *value = NULL;
    ledger_entry entry = {0};
    if (json_parse(line, size, path, &value) != ST_OK)
        return false;
    entry.step = json_int(json_find(value, "step"), -1);
    entry.documents = json_int(json_find(value, "documents"), -1);
    entry.loss = real_of(value, "loss");
    entry.grad_norm = real_of(value, "grad_norm");
    entry.skipped = json_bool(json_find(value, "skipped"), false);
    snprintf(entry.updated, sizeof entry.updated, "%s", json_text(json_find(value, "partial"), ""));
    bool ok = entry.step > 0 &&
              hash_parse(json_text(json_find(value, "samples"), ""), &entry.samples) &&
              hash_parse(json_text(json_find(value, "rows"), ""), &entry.rows);
    json_free(&value);
    if (ok)
        *out = entry;
    return ok;
}

/* Reads the entries of the last branch: a line whose step is not above that of the line before
 * begins a new branch, and the entries of the old one from that step on are dropped. */
static status read_lines(FILE *file, const char *path, ledger_entry **out, int64_t *out_n)
{
    ledger_entry *list = NULL;
    int64_t count = 0, capacity = 0;
    char *line = NULL;
    size_t room = 0;
    status st = ST_OK;
    for (ssize_t size; (size = getline(&line, &room, file)) > 0;) {
        ledger_entry entry;
        if (!parse_line(line, (size_t)size, path, &entry))
            continue;
        while (count && list[count - 1].step >= entry.step)
            count--;
        if (count == capacity) {
            capacity = capacity ? 2 * capacity : 1024;
            ledger_entry *more = realloc(list, (size_t)capacity * sizeof *list);
            if (!more) {
                st = FAIL(ST_NO_MEMORY, "no memory for the ledger %s", path);
                break;
            }
            list = more;
        }
        list[count++] = entry;
    }
    free(line);
    if (st == ST_OK)
        status_clear(); /* the parser's errors, for lines that were cut short */
    *out = list;
    *out_n = count;
    return st;
}

status ledger_read(const char *folder, ledger_entry **out, int64_t *out_n)
{
    char path[STATUS_PATH_MAX];
    ledger_entry *list = NULL;
    int64_t count = 0;
    TRY(path_of(folder, path));
    FILE *file = fopen(path, "re");
    if (!file)
        return FAIL_IN(ST_NO_INPUT, path, "%s", strerror(errno));
    status st = read_lines(file, path, &list, &count);
    fclose(file);
    if (st != ST_OK) {
        free(list);
        return st;
    }
    *out = list;
    *out_n = count;
    return ST_OK;
}

ledger_entry ledger_entry_of(const step_report *report)
{
    ledger_entry entry = {.step = report->step,
                          .documents = report->documents,
                          .samples = report->samples_digest,
                          .rows = report->rows_digest,
                          .loss = isfinite(report->loss) ? report->loss : NAN,
                          .grad_norm = isfinite(report->grad_norm) ? report->grad_norm : NAN,
                          .skipped = report->skipped};
    snprintf(entry.updated, sizeof entry.updated, "%s", report->updated);
    return entry;
}

static bool same_real(double first, double second)
{
    return first == second || (isnan(first) && isnan(second));
}

void ledger_difference(const ledger_entry *was, const ledger_entry *now, char *out, size_t size)
{
    *out = 0;
    if (!hash_equal(was->samples, now->samples))
        snprintf(out, size, "the samples differ: %" PRId64 " documents then, %" PRId64 " now",
                 was->documents, now->documents);
    else if (!hash_equal(was->rows, now->rows))
        snprintf(out, size, "the samples are the same, but their pixels, texts or labels differ");
    else if (!same_real(was->loss, now->loss))
        snprintf(out, size, "the loss was %.17g then and is %.17g now", was->loss, now->loss);
    else if (!same_real(was->grad_norm, now->grad_norm))
        snprintf(out, size, "the gradient norm was %.17g then and is %.17g now", was->grad_norm,
                 now->grad_norm);
    else if (was->skipped != now->skipped)
        snprintf(out, size, "the update was %s then and is %s now",
                 was->skipped ? "skipped" : "made", now->skipped ? "skipped" : "made");
    else if (strcmp(was->updated, now->updated) != 0)
        snprintf(out, size, "the step was partial: updated then: %s; now: %s",
                 was->updated[0] ? was->updated : "nothing",
                 now->updated[0] ? now->updated : "nothing");
}
