/* page.c: builds the HTML page of page.h in memory and writes it. */
#include "trainer/eval/page.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/html_text.h"
#include "trainer/eval/picture.h"
#include "trainer/generate/generate.h"
#include "trainer/generate/prompt.h"

struct page {
    const char *path;
    char *text; /* the entries so far, which `body` writes */
    size_t size;
    FILE *body;
    int64_t entries, written, right; /* all; those on the page; those of them that are right */
    bool full;                       /* further documents are only counted */
    bool conversations;              /* a document with several questions is there */
    hash128 shown;                   /* hash of the pictures of the open section */
    bool open;                       /* a section is open */
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
    fputs(p->open ? "</table></div></section>\n<section>" : "<section>", p->body);
    p->open = true;
    p->shown = pictures;
    patch = first;
    fputs("<div class=\"pictures\">\n", p->body);
    for (int64_t i = items.first; i < items.last; i++) {
        const int32_t *grid = &r->grid_thw[3 * i];
        char *uri = NULL;
        TRY(picture_data_uri(r, i, patch, &uri));
        fprintf(p->body, "<img alt=\"the picture asked about, %d x %d pixels\" src=\"%s\">\n",
                grid[2] * PATCH_SIDE, grid[1] * PATCH_SIDE, uri);
        free(uri);
        patch += (int64_t)grid[0] * grid[1] * grid[2];
    }
    fputs("</div>\n<div class=\"questions\"><table><tr><th>question</th><th>reference</th>"
          "<th>model</th><th>score</th></tr>\n",
          p->body);
    return ST_OK;
}

static bool is_right(const page_entry *entry)
{
    return entry->score >= 0 ? entry->score >= 0.5 : entry->verdict != PAGE_WRONG;
}

status page_add(page *p, const row *r, int64_t doc, const page_entry *entry)
{
    static const char *const verdicts[] = {"wrong", "right", "right so far"};
    p->entries++;
    p->full = p->full || (p->written >= PAGE_MOST && !entry->goes_on);
    if (p->full)
        return ST_OK;
    TRY(open_section(p, r, doc));
    const char *cells[] = {entry->question, entry->reference, entry->words};
    p->written++;
    p->right += is_right(entry);
    p->conversations = p->conversations || entry->goes_on;
    fprintf(p->body, "<tr class=\"%s%s\">", is_right(entry) ? "right" : "wrong",
            entry->goes_on ? " goes-on" : "");
    for (int i = 0; i < 3; i++) {
        fputs("<td>", p->body);
        html_put_text(p->body, cells[i]);
        fputs("</td>", p->body);
    }
    if (entry->score >= 0)
        fprintf(p->body, "<td>%.0f %%</td>", 100 * entry->score);
    else
        fprintf(p->body, "<td>%s</td>", verdicts[entry->verdict]);
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
        fprintf(f, "</td><td>%" PRId64 "</td><td>%.2f %%</td></tr>\n", list[i].count,
                vqa_share_percent(&list[i]));
    }
    fputs("</table>\n", f);
}

static const char style[] =
    ".types{display:flex;flex-wrap:wrap;gap:32px;align-items:flex-start;margin:8px 0 24px}"
    "section{display:flex;flex-wrap:wrap;gap:16px;align-items:flex-start;padding:12px 0;"
    "border-top:1px solid var(--line)}"
    ".pictures{flex:0 0 240px;display:flex;flex-wrap:wrap;gap:8px}"
    ".pictures img{max-width:240px;max-height:240px;min-width:112px;border-radius:4px}"
    ".questions{flex:1 1 480px;min-width:min(100%,18em)}"
    "table{border-collapse:collapse}section table{width:100%;table-layout:fixed}"
    "th,td{text-align:left;padding:3px 10px 3px 6px;border-bottom:1px solid var(--line);"
    "vertical-align:top;overflow-wrap:break-word}"
    "section th:nth-child(n+2){width:22%}section th:last-child{width:4em}"
    "th{font-weight:600;color:var(--faint)}.goes-on td:first-child{padding-left:1.6em}"
    ".right td:nth-child(n+3){color:var(--good)}.wrong td:nth-child(n+3){color:var(--bad)}"
    ".note{color:var(--faint);max-width:62em}"
    "@media(max-width:600px){.pictures{flex-basis:100%}th,td{padding:3px 4px;font-size:14px}}";

/* Says what is on the page and how it was judged. */
static void put_note(FILE *f, const page *p, const vqa_tally *tally)
{
    fprintf(f, "<p class=\"note\">%" PRId64, p->written);
    if (p->written < p->entries)
        fprintf(f, " of %" PRId64, p->entries);
    fprintf(f,
            " questions below are answered in the model's own words, at most %d tokens; %" PRId64
            " answers are right. ",
            GENERATE_MAX, p->right);
    fputs(tally->all.count
              ? "A score in percent is the agreement with annotators, and right from 50 % "
                "on; without them an answer"
              : "An answer",
          f);
    fputs(" is right if its words are the reference's.", f);
    if (p->conversations)
        fputs(" A later question of a conversation, indented, is asked after the reference answers "
              "to those before it.",
              f);
    fputs("</p>\n", f);
}

/* The accuracy by type, closed at first. */
static void put_types(FILE *f, const vqa_tally *tally)
{
    if (!tally->n_answer && !tally->n_question)
        return;
    fputs("<details><summary>Agreement with annotators by type of question</summary>\n"
          "<div class=\"types\">\n",
          f);
    put_shares(f, "answer type", tally->answer, tally->n_answer);
    put_shares(f, "question type", tally->question, tally->n_question);
    fputs("</div></details>\n", f);
}

static void put_page(FILE *f, const page *p, const html_fact *facts, int n, const vqa_tally *tally)
{
    html_page_begin(f, "Held-out questions", style);
    html_page_facts(f, facts, n);
    put_types(f, tally);
    put_note(f, p, tally);
    fwrite(p->text, 1, p->size, f);
    if (p->open)
        fputs("</table></div></section>\n", f);
    html_page_end(f);
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

status page_finish(page *p, const html_fact *facts, int n, const vqa_tally *tally)
{
    char aside[STATUS_PATH_MAX];
    FILE *f;
    if (fflush(p->body) != 0)
        return FAIL(ST_NO_MEMORY, "page: out of memory");
    TRY(open_aside(p->path, aside, &f));
    put_page(f, p, facts, n, tally);
    bool ok = !ferror(f);
    ok = fclose(f) == 0 && ok;
    if (!ok || rename(aside, p->path) != 0)
        return FAIL_IN(ST_IO, p->path, "eval.page: %s", strerror(errno));
    return ST_OK;
}
