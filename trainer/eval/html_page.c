/* SPDX-License-Identifier: Apache-2.0 */
/* html_page.c: the frame of pages and where they are written, and the facts of a run and of an
 * evaluation. */
#include "trainer/eval/html_page.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "common/base/words.h"

#define MARK "<meta name=\"tessera\" content=\""

static const char common_style[] =
    ":root{color-scheme:light dark;--ink:#1c2733;--paper:#fff;--faint:#57636f;--line:#d9dfe6;"
    "--panel:#f3f5f8;--mark:#1f6feb;--good:#116329;--bad:#a0111f}\n"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--paper:#0f141a;--faint:#9aa7b4;"
    "--line:#2d3742;--panel:#18202a;--mark:#6cb0ff;--good:#6fdd8b;--bad:#ff9b9b}}\n"
    "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:1140px;padding:0 1em;"
    "color:var(--ink);background:var(--paper)}h1{font-size:1.4em}h2{font-size:1.1em}\n"
    ".facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(9em,1fr));gap:10px;"
    "margin:0 0 20px}.facts div{background:var(--panel);border-radius:6px;padding:8px 12px}"
    ".facts dt,.facts small{color:var(--faint);font-size:13px}"
    ".facts dd{margin:0;font-size:1.15em;font-weight:600;overflow-wrap:anywhere}"
    ".facts small{display:block;font-weight:400;line-height:1.35}\n";

html_mark html_mark_of(const conf *options, int64_t step)
{
    const char *folder = step < 0 ? options->model_path : options->job_dump_folder;
    return (html_mark){hash_bytes(folder, strlen(folder)), step < 0 ? 0 : step};
}

/* Reads the mark of a page; false if the file has none. */
static bool read_mark(const char *path, html_mark *out)
{
    char head[512], digest[HASH_TEXT];
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    head[fread(head, 1, sizeof head - 1, file)] = 0;
    fclose(file);
    const char *at = strstr(head, MARK);
    return at && sscanf(at + strlen(MARK), "%32[0-9a-f] %" SCNd64, digest, &out->step) == 2 &&
           hash_parse(digest, &out->run);
}

/* Writes PREFIX before the name of a file and, from 2 on, -NUMBER after it. */
static status beside(const char *path, const char *prefix, int number, char out[STATUS_PATH_MAX])
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path,
               *dot = strrchr(name, '.');
    const int folder = (int)(name - path), stem = (int)(dot ? dot - name : (long)strlen(name));
    char count[16] = "";
    if (number > 1)
        snprintf(count, sizeof count, "-%d", number);
    if (snprintf(out, STATUS_PATH_MAX, "%.*s%s%.*s%s%s", folder, path, prefix, stem, name, count,
                 dot ? dot : "") >= STATUS_PATH_MAX)
        return FAIL_IN(ST_CANT_CREATE, path, "the path is too long");
    return ST_OK;
}

status html_page_place(const char *path, html_mark mark, char out[STATUS_PATH_MAX])
{
    for (int i = 1;; i++) {
        html_mark was;
        TRY(beside(path, "", i, out));
        if (access(out, F_OK) != 0 ||
            (read_mark(out, &was) && hash_equal(was.run, mark.run) && was.step <= mark.step))
            return ST_OK;
    }
}

status html_page_set_aside(const char *path, html_mark mark, bool any, char out[STATUS_PATH_MAX])
{
    html_mark was;
    out[0] = 0;
    const bool mine = read_mark(path, &was) && hash_equal(was.run, mark.run);
    if (access(path, F_OK) != 0 || (mine ? was.step <= mark.step : !any))
        return ST_OK;
    for (int i = 1; i == 1 || access(out, F_OK) == 0; i++)
        TRY(beside(path, "set-aside-", i, out));
    return rename(path, out) == 0 ? ST_OK : FAIL_IN(ST_IO, path, "rename: %s", strerror(errno));
}

/* The name beside `path` under which a page is written. */
static status name_aside(const char *path, char out[STATUS_PATH_MAX])
{
    return snprintf(out, STATUS_PATH_MAX, "%s.tmp", path) < STATUS_PATH_MAX
               ? ST_OK
               : FAIL_IN(ST_CANT_CREATE, path, "the path is too long");
}

status html_page_open(const char *path, FILE **out)
{
    char aside[STATUS_PATH_MAX];
    TRY(name_aside(path, aside));
    *out = fopen(aside, "we");
    return *out ? ST_OK : FAIL_IN(ST_CANT_CREATE, aside, "%s", strerror(errno));
}

status html_page_close(const char *path, FILE **file)
{
    char aside[STATUS_PATH_MAX];
    bool ok = !ferror(*file);
    ok = fclose(*file) == 0 && ok;
    *file = NULL;
    TRY(name_aside(path, aside));
    return ok && rename(aside, path) == 0 ? ST_OK : FAIL_IN(ST_IO, path, "%s", strerror(errno));
}

void html_page_begin(FILE *to, const char *title, const char *style, html_mark mark)
{
    char digest[HASH_TEXT];
    hash_print(mark.run, digest);
    fprintf(to,
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">" MARK "%s %" PRId64
            "\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>",
            digest, mark.step);
    html_put_text(to, title);
    fprintf(to, "</title>\n<style>%s%s</style></head><body>\n<h1>", common_style, style);
    html_put_text(to, title);
    fputs("</h1>\n", to);
}

void html_page_facts(FILE *to, const html_fact *facts, int count)
{
    fputs("<dl class=\"facts\">\n", to);
    for (int i = 0; i < count; i++) {
        fputs("<div><dt>", to);
        html_put_text(to, facts[i].name);
        fputs("</dt><dd>", to);
        html_put_text(to, facts[i].value);
        if (facts[i].note[0]) {
            fputs("<small>", to);
            html_put_text(to, facts[i].note);
            fputs("</small>", to);
        }
        fputs("</dd></div>\n", to);
    }
    fputs("</dl>\n", to);
}

void html_page_end(FILE *to)
{
    fputs("</body></html>\n", to);
}

static double percent_right(const evaluation *result)
{
    return evaluation_percent(result->right, result->answers);
}

void evaluation_print(const evaluation *result, int64_t step)
{
    printf("eval: ");
    if (step >= 0)
        printf("step: %" PRId64 "  ", step);
    printf("loss: %.4f  accuracy: %.1f%% of %" PRId64 " answers", result->loss,
           percent_right(result), result->answers);
    if (step < 0)
        printf("  images swapped: %.1f%% of %" PRId64 " (own: %.1f%%)",
               evaluation_percent(result->swapped_right, result->swapped), result->swapped,
               evaluation_percent(result->own_right, result->swapped));
    if (step < 0 && isfinite(result->chance_percent))
        printf("  chance: %.1f%%", result->chance_percent);
    printf("  seconds: %.1f\n", result->seconds);
    if (result->documents != result->answers)
        printf("eval: %.1f%% of %" PRId64 " documents have all answers right\n",
               evaluation_percent(result->documents_right, result->documents), result->documents);
    if (!result->vqa.all.count)
        return;
    printf("vqa: ");
    if (step >= 0)
        printf("step: %" PRId64 "  ", step);
    printf("accuracy: %.2f%% of %" PRId64 " questions\n", vqa_share_percent(&result->vqa.all),
           result->vqa.all.count);
}

static void set_percent(html_fact *fact, const char *name, double percent)
{
    fact->name = name;
    snprintf(fact->value, sizeof fact->value, "%.1f %%", percent);
    fact->note[0] = 0;
}

int evaluation_facts(const evaluation *result, html_fact out[EVALUATION_FACTS])
{
    int count = 0;
    out[count] = (html_fact){.name = "held-out loss", .note = "mean over target tokens"};
    snprintf(out[count].value, sizeof out[count].value, "%.4f", result->loss);
    set_percent(&out[++count], "held-out accuracy", percent_right(result));
    snprintf(out[count].note, sizeof out[count].note,
             "of %" PRId64 " answers have every token right", result->answers);
    if (result->documents != result->answers) {
        set_percent(&out[++count], "whole documents",
                    evaluation_percent(result->documents_right, result->documents));
        snprintf(out[count].note, sizeof out[count].note,
                 "of %" PRId64 " documents have all of their answers right", result->documents);
    }
    if (result->swapped) {
        set_percent(&out[++count], "images swapped",
                    evaluation_percent(result->swapped_right, result->swapped));
        snprintf(out[count].note, sizeof out[count].note,
                 "of %" PRId64 " answers; the same ones with their own pictures: %.1f %%",
                 result->swapped, evaluation_percent(result->own_right, result->swapped));
    }
    if (isfinite(result->chance_percent)) {
        set_percent(&out[++count], "chance", result->chance_percent);
        snprintf(out[count].note, sizeof out[count].note,
                 "how often a question asked of two pictures has the same answer");
    }
    if (result->vqa.all.count) {
        set_percent(&out[++count], "generated answers", vqa_share_percent(&result->vqa.all));
        snprintf(out[count].note, sizeof out[count].note,
                 "agreement with annotators on %" PRId64 " questions", result->vqa.all.count);
    }
    return count + 1;
}

void path_shown(const char *path, const char *folder, char *out, size_t size)
{
    const size_t inside = strlen(folder);
    const char *shown = path;
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    if (inside > 1 && length > inside && strncmp(path, folder, inside) == 0 && path[inside] == '/')
        shown = path + inside + 1;
    else if (path[0] == '/')
        for (size_t i = 0; i + 1 < length; i++)
            shown = path[i] == '/' ? path + i + 1 : shown;
    snprintf(out, size, "%.*s", (int)(length - (size_t)(shown - path)), shown);
}

void run_fact(const conf *options, html_fact *out)
{
    *out = (html_fact){.name = "run"};
    path_shown(options->job_dump_folder, "", out->value, sizeof out->value);
    snprintf(out->note, sizeof out->note, "%s", options->job_description);
}

void data_fact(const conf *options, bool held_out, html_fact *out)
{
    const char *path = held_out && options->eval_path[0] ? options->eval_path : options->data_path;
    *out = (html_fact){.name = held_out ? "held-out data" : "data set"};
    path_shown(path, "", out->value, sizeof out->value);
    if (!out->value[0]) /* a mixture, or rows of a recording */
        snprintf(out->value, sizeof out->value, "several or recorded");
    snprintf(out->note, sizeof out->note, "split %s",
             held_out ? options->eval_split : options->data_split);
}
