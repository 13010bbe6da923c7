/* ledger.c: writes the ledger line by line, reads it back, and compares two entries. */
#include "trainer/report/ledger.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/json/json.h"

static const char file_name[] = "ledger.jsonl";

struct ledger {
    FILE *file;
    bool with_ids;
    bool cut; /* the last line was cut short: the next one must begin on a line of its own */
    char path[STATUS_PATH_MAX];
};

static status path_of(const char *folder, char out[STATUS_PATH_MAX])
{
    if (snprintf(out, STATUS_PATH_MAX, "%s/%s", folder, file_name) >= STATUS_PATH_MAX)
        return FAIL_IN(ST_CANT_CREATE, folder, "the path of the ledger is too long");
    return ST_OK;
}

status ledger_open(const char *folder, bool with_ids, ledger **out)
{
    ledger *l = calloc(1, sizeof *l);
    if (!l)
        return FAIL(ST_NO_MEMORY, "no memory for the ledger");
    status st = path_of(folder, l->path);
    l->with_ids = with_ids;
    if (st == ST_OK && !(l->file = fopen(l->path, "a+e")))
        st = FAIL_IN(ST_CANT_CREATE, l->path, "%s", strerror(errno));
    /* If the last line was cut short, end it, so that the next one begins on a line of its own. */
    if (st == ST_OK && fseek(l->file, -1, SEEK_END) == 0) {
        int last = fgetc(l->file);
        if (last != '\n' && (fseek(l->file, 0, SEEK_END) != 0 || fputc('\n', l->file) == EOF))
            st = FAIL_IN(ST_IO, l->path, "write failed: %s", strerror(errno));
    }
    if (st != ST_OK) {
        ledger_close(&l);
        return st;
    }
    *out = l;
    return ST_OK;
}

void ledger_close(ledger **held)
{
    ledger *l = *held;
    if (!l)
        return;
    if (l->file)
        fclose(l->file);
    free(l);
    *held = NULL;
}

status ledger_sync(ledger *l)
{
    return fsync(fileno(l->file)) == 0 ? ST_OK
                                       : FAIL_IN(ST_IO, l->path, "fsync: %s", strerror(errno));
}

static void put_digest(json_writer *w, const char *key, hash128 digest)
{
    char text[HASH_TEXT];
    hash_print(digest, text);
    json_put_key_cstr(w, key, text);
}

status ledger_add(ledger *l, const step_report *r, bool leaps)
{
    json_writer w;
    char *text = NULL;
    json_writer_init(&w);
    json_begin_object(&w);
    json_put_key_int(&w, "step", r->step);
    json_put_key_int(&w, "documents", r->documents);
    put_digest(&w, "samples", r->samples_digest);
    put_digest(&w, "rows", r->rows_digest);
    json_put_key_real(&w, "loss", r->loss);
    json_put_key_real(&w, "grad_norm", r->grad_norm);
    json_put_key_bool(&w, "skipped", r->skipped);
    if (leaps)
        json_put_key_bool(&w, "leaps", true);
    if (l->with_ids || r->skipped || leaps) {
        json_begin_key_array(&w, "ids");
        for (int64_t i = 0; i < r->n_samples; i++)
            json_put_int(&w, (int64_t)r->sample[i]);
        json_end_array(&w);
    }
    json_end_object(&w);
    TRY(json_writer_take(&w, &text, NULL));
    l->cut = fprintf(l->file, "%s%s\n", l->cut ? "\n" : "", text) < 0 || fflush(l->file) != 0;
    free(text);
    return !l->cut ? ST_OK : FAIL_IN(ST_IO, l->path, "write failed: %s", strerror(errno));
}

static double real_of(const json_value *v, const char *key)
{
    return json_real(json_find(v, key), NAN);
}

/* False for a line that was cut short or is no entry of a ledger. */
static bool parse_line(const char *line, size_t size, const char *path, ledger_entry *out)
{
    json_value *v = NULL;
    ledger_entry e = {0};
    if (json_parse(line, size, path, &v) != ST_OK)
        return false;
    e.step = json_int(json_find(v, "step"), -1);
    e.documents = json_int(json_find(v, "documents"), -1);
    e.loss = real_of(v, "loss");
    e.grad_norm = real_of(v, "grad_norm");
    e.skipped = json_bool(json_find(v, "skipped"), false);
    bool ok = e.step > 0 && hash_parse(json_text(json_find(v, "samples"), ""), &e.samples) &&
              hash_parse(json_text(json_find(v, "rows"), ""), &e.rows);
    json_free(&v);
    if (ok)
        *out = e;
    return ok;
}

/* Reads the entries of the last branch: a line whose step is not above that of the line before
 * begins a new branch, and the entries of the old one from that step on are dropped. */
static status read_lines(FILE *f, const char *path, ledger_entry **out, int64_t *out_n)
{
    ledger_entry *list = NULL;
    int64_t n = 0, capacity = 0;
    char *line = NULL;
    size_t room = 0;
    status st = ST_OK;
    for (ssize_t size; (size = getline(&line, &room, f)) > 0;) {
        ledger_entry e;
        if (!parse_line(line, (size_t)size, path, &e))
            continue;
        while (n && list[n - 1].step >= e.step)
            n--;
        if (n == capacity) {
            capacity = capacity ? 2 * capacity : 1024;
            ledger_entry *more = realloc(list, (size_t)capacity * sizeof *list);
            if (!more) {
                st = FAIL(ST_NO_MEMORY, "no memory for the ledger %s", path);
                break;
            }
            list = more;
        }
        list[n++] = e;
    }
    free(line);
    if (st == ST_OK)
        status_clear(); /* the parser's errors, for lines that were cut short */
    *out = list;
    *out_n = n;
    return st;
}

status ledger_read(const char *folder, ledger_entry **out, int64_t *out_n)
{
    char path[STATUS_PATH_MAX];
    ledger_entry *list = NULL;
    int64_t n = 0;
    TRY(path_of(folder, path));
    FILE *f = fopen(path, "re");
    if (!f)
        return FAIL_IN(ST_NO_INPUT, path, "%s", strerror(errno));
    status st = read_lines(f, path, &list, &n);
    fclose(f);
    if (st != ST_OK) {
        free(list);
        return st;
    }
    *out = list;
    *out_n = n;
    return ST_OK;
}

ledger_entry ledger_entry_of(const step_report *r)
{
    return (ledger_entry){.step = r->step,
                          .documents = r->documents,
                          .samples = r->samples_digest,
                          .rows = r->rows_digest,
                          .loss = isfinite(r->loss) ? r->loss : NAN,
                          .grad_norm = isfinite(r->grad_norm) ? r->grad_norm : NAN,
                          .skipped = r->skipped};
}

static bool same_real(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
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
}
