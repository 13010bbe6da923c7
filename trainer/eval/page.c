/* page.c: builds the HTML page of page.h in memory and writes it. */
#include "trainer/eval/page.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/html_text.h"
#include "trainer/eval/picture.h"
#include "trainer/generate/prompt.h"

struct page {
    const char *path;
    char *text; /* the entries so far, which `body` writes */
    size_t size;
    FILE *body;
    int64_t entries;
    hash128 shown; /* hash of the pictures of the open section */
    bool open;     /* a section is open */
};

status page_new(const char *path, page **out)
{
    page *p = calloc(1, sizeof *p);
    if (!p)
        return FAIL(ST_NO_MEMORY, "page: out of memory");
    p->path = path;
    p->body = open_memstream(&p->text, &p->size);
    if (!p->body) {
        free(p);
        return FAIL(ST_NO_MEMORY, "page: out of memory");
    }
    *out = p;
    return ST_OK;
}

void page_free(page **pp)
{
    page *p = *pp;
    if (!p)
        return;
    if (p->body)
        fclose(p->body);
    free(p->text);
    free(p);
    *pp = NULL;
}

/* Opens a new section unless the document shows the same pictures as the entry before. */
static status open_section(page *p, const row *r, int64_t doc)
{
    prompt_span items;
    prompt_items(r, doc, &items);
    int64_t first = items.first_row * MERGE_SIDE * MERGE_SIDE, patch = first;
    for (int64_t i = items.first; i < items.last; i++)
        patch += (int64_t)r->grid_thw[3 * i] * r->grid_thw[3 * i + 1] * r->grid_thw[3 * i + 2];
    const uint8_t *pixels = patch > first ? r->pixels + first * PATCH_BYTES : NULL;
    hash128 pictures = hash_bytes(pixels, (size_t)((patch - first) * PATCH_BYTES));
    if (p->open && hash_equal(pictures, p->shown))
        return ST_OK;
    fputs(p->open ? "</table></section>\n<section>" : "<section>", p->body);
    p->open = true;
    p->shown = pictures;
    patch = first;
    fputs("<div class=\"pictures\">\n", p->body);
    for (int64_t i = items.first; i < items.last; i++) {
        const int32_t *grid = &r->grid_thw[3 * i];
        char *uri = NULL;
        TRY(picture_data_uri(r, i, patch, &uri));
        fprintf(p->body, "<img alt=\"%d x %d pixels\" src=\"%s\">\n", grid[2] * PATCH_SIDE,
                grid[1] * PATCH_SIDE, uri);
        free(uri);
        patch += (int64_t)grid[0] * grid[1] * grid[2];
    }
    fputs("</div>\n<table><tr><th>question</th><th>reference</th><th>model</th><th></th></tr>\n",
          p->body);
    return ST_OK;
}

status page_add(page *p, const row *r, int64_t doc, const page_entry *entry)
{
    if (p->entries++ >= PAGE_MOST)
        return ST_OK;
    TRY(open_section(p, r, doc));
    const char *kind = entry->score < 0 ? "" : entry->score >= 0.5 ? "right" : "wrong";
    const char *cells[] = {entry->question, entry->reference, entry->words};
    fprintf(p->body, "<tr class=\"%s\">", kind);
    for (int i = 0; i < 3; i++) {
        fputs("<td>", p->body);
        html_put_text(p->body, cells[i]);
        fputs("</td>", p->body);
    }
    if (entry->score >= 0)
        fprintf(p->body, "<td>%.0f %%</td>", 100 * entry->score);
    else
        fputs("<td></td>", p->body);
    fprintf(p->body, "<!-- sample %" PRIu64 " --></tr>\n", r->doc_sample_id[doc]);
    return ST_OK;
}

static void put_shares(FILE *f, const char *what, const vqa_share *list, int n)
{
    if (n == 0)
        return;
    fprintf(f, "<table class=\"shares\"><tr><th>%s</th><th>questions</th><th>accuracy</th></tr>\n",
            what);
    for (int i = 0; i < n; i++) {
        fputs("<tr><td>", f);
        html_put_text(f, list[i].type);
        fprintf(f, "</td><td>%" PRId64 "</td><td>%.2f %%</td></tr>\n", list[i].n,
                vqa_share_percent(&list[i]));
    }
    fputs("</table>\n", f);
}

static const char style[] =
    "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:1140px;padding:0 1em;"
    "color:#1c2733;background:#fff}h1{font-size:1.4em}pre{background:#f3f5f8;padding:1em;"
    "overflow:auto;font-size:13px}.types{display:flex;flex-wrap:wrap;gap:32px;"
    "align-items:flex-start;margin-bottom:24px}section{display:flex;flex-wrap:wrap;gap:16px;"
    "align-items:flex-start;padding:12px 0;border-top:1px solid #d9dfe6}"
    ".pictures{flex:0 0 240px;display:flex;flex-wrap:wrap;gap:8px}"
    ".pictures img{max-width:240px;max-height:240px;min-width:112px;border-radius:4px}"
    "table{border-collapse:collapse}section table{flex:1 1 480px;table-layout:fixed;width:0}"
    "th,td{text-align:left;padding:3px 10px;border-bottom:1px solid #e6eaef;vertical-align:top}"
    "section th:first-child{width:45%}section th:last-child{width:4em}"
    "th{font-weight:600;color:#57636f}.right td:nth-child(3){color:#116329;background:#e9f7ec}"
    ".wrong td:nth-child(3){color:#a0111f;background:#fdecee}";

static void put_page(FILE *f, const page *p, const char *summary, const vqa_tally *tally)
{
    fprintf(f,
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
            "<title>held-out questions</title><style>%s</style></head><body>\n"
            "<h1>held-out questions</h1>\n<pre>",
            style);
    html_put_text(f, summary);
    fputs("</pre>\n<div class=\"types\">\n", f);
    put_shares(f, "answer type", tally->answer, tally->n_answer);
    put_shares(f, "question type", tally->question, tally->n_question);
    fputs("</div>\n", f);
    if (p->entries > PAGE_MOST)
        fprintf(f, "<p>The first %d of %" PRId64 " questions.</p>\n", PAGE_MOST, p->entries);
    fwrite(p->text, 1, p->size, f);
    fputs(p->open ? "</table></section>\n</body></html>\n" : "</body></html>\n", f);
}

/* Opens the file beside `path` that will take its place. */
static status open_aside(const char *path, char aside[STATUS_PATH_MAX], FILE **out)
{
    if (snprintf(aside, STATUS_PATH_MAX, "%s.tmp", path) >= STATUS_PATH_MAX)
        return FAIL_IN(ST_CANT_CREATE, path, "eval.page: the path is too long");
    *out = fopen(aside, "we");
    return *out ? ST_OK : FAIL_IN(ST_CANT_CREATE, aside, "eval.page: %s", strerror(errno));
}

status page_try(const char *path)
{
    char aside[STATUS_PATH_MAX];
    FILE *f;
    TRY(open_aside(path, aside, &f));
    fclose(f);
    unlink(aside);
    return ST_OK;
}

status page_finish(page *p, const char *summary, const vqa_tally *tally)
{
    char aside[STATUS_PATH_MAX];
    FILE *f;
    if (fflush(p->body) != 0)
        return FAIL(ST_NO_MEMORY, "page: out of memory");
    TRY(open_aside(p->path, aside, &f));
    put_page(f, p, summary, tally);
    bool ok = !ferror(f);
    ok = fclose(f) == 0 && ok;
    if (!ok || rename(aside, p->path) != 0)
        return FAIL_IN(ST_IO, p->path, "eval.page: %s", strerror(errno));
    return ST_OK;
}
