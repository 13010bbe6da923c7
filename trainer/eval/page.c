/* SPDX-License-Identifier: Apache-2.0 */
/* page.c: joins patches to pixels and encodes them as PNG and base64, builds the page in memory and
 * writes it. Only this file includes libpng. */
#include "trainer/eval/page.h"

#include <errno.h>
#include <inttypes.h>
#include <png.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/words.h"
#include "trainer/generate/generate.h"
#include "trainer/generate/prompt.h"

enum { CHANNELS = 3 };

/* Writes patches as pixels. They are in merge order, blocks of 2 x 2 one after another, and the
 * bytes of a patch run over channel, pixel_y, `pixel_x`. */
static void join_patches(const uint8_t *patch, int64_t high, int64_t wide, uint8_t *rgb)
{
    const int64_t stride = wide * PATCH_SIDE * CHANNELS, area = PATCH_SIDE * PATCH_SIDE;
    for (int64_t i = 0; i < high * wide; i++, patch += PATCH_BYTES) {
        int64_t block = i / (MERGE_SIDE * MERGE_SIDE), in = i % (MERGE_SIDE * MERGE_SIDE);
        int64_t line = block / (wide / MERGE_SIDE) * MERGE_SIDE + in / MERGE_SIDE;
        int64_t column = block % (wide / MERGE_SIDE) * MERGE_SIDE + in % MERGE_SIDE;
        uint8_t *to = rgb + line * PATCH_SIDE * stride + column * PATCH_SIDE * CHANNELS;
        for (int64_t pixel_y = 0; pixel_y < PATCH_SIDE; pixel_y++)
            for (int64_t pixel_x = 0; pixel_x < PATCH_SIDE; pixel_x++)
                for (int64_t channel = 0; channel < CHANNELS; channel++)
                    to[pixel_y * stride + pixel_x * CHANNELS + channel] =
                        patch[channel * area + pixel_y * PATCH_SIDE + pixel_x];
    }
}

/* Writes the base64 form of `count` bytes to out, in whole groups of four characters. */
static void put_base64(const uint8_t *bytes, size_t count, char *out)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < count; i += 3, out += 4) {
        uint32_t group = (uint32_t)bytes[i] << 16;
        group |= i + 1 < count ? (uint32_t)bytes[i + 1] << 8 : 0;
        group |= i + 2 < count ? bytes[i + 2] : 0;
        for (int j = 0; j < 4; j++)
            out[j] = digit[group >> (18 - 6 * j) & 63];
        if (i + 1 >= count)
            out[2] = '=';
        if (i + 2 >= count)
            out[3] = '=';
    }
    *out = 0;
}

static status encode_png(const uint8_t *rgb, int64_t high, int64_t wide, uint8_t **out,
                         size_t *out_n)
{
    png_image image = {.version = PNG_IMAGE_VERSION,
                       .width = (png_uint_32)wide,
                       .height = (png_uint_32)high,
                       .format = PNG_FORMAT_RGB};
    png_alloc_size_t length = PNG_IMAGE_PNG_SIZE_MAX(image);
    *out = malloc(length);
    if (!*out)
        return FAIL(ST_NO_MEMORY, "picture: out of memory");
    if (!png_image_write_to_memory(&image, *out, &length, 0, rgb, 0, NULL))
        return FAIL(ST_INTERNAL, "picture of %lld x %lld: libpng: %s", (long long)wide,
                    (long long)high, image.message);
    *out_n = length;
    return ST_OK;
}

status picture_data_uri(const row *packed, int64_t item, int64_t first_patch, char **out)
{
    static const char start[] = "data:image/png;base64,";
    const int32_t *grid = &packed->grid_thw[3 * item];
    const int64_t high = grid[1], wide = grid[2];
    uint8_t *rgb = malloc((size_t)(high * wide * PATCH_BYTES)), *png = NULL;
    size_t count = 0;
    status st = ST_OK;
    if (!rgb)
        return FAIL(ST_NO_MEMORY, "picture: out of memory");
    join_patches(packed->pixels + first_patch * PATCH_BYTES, high, wide, rgb);
    TRY_OR(done, encode_png(rgb, high * PATCH_SIDE, wide * PATCH_SIDE, &png, &count));
    char *text = malloc(sizeof start + (count + 2) / 3 * 4);
    if (!text) {
        st = FAIL(ST_NO_MEMORY, "picture: out of memory");
        goto done;
    }
    memcpy(text, start, sizeof start);
    put_base64(png, count, text + sizeof start - 1);
    *out = text;
done:
    free(png);
    free(rgb);
    return st;
}

struct page {
    char path[STATUS_PATH_MAX];
    html_mark mark;
    char *text; /* the entries so far, which `body` writes */
    size_t size;
    FILE *body;
    int64_t entries, written, right; /* all; those on the page; those of them that are right */
    bool full;                       /* further documents are only counted */
    bool conversations;              /* a document with several questions is there */
    hash128 shown;                   /* hash of the pictures of the open section */
    bool open;                       /* a section is open */
};

status page_new(const char *path, html_mark mark, page **out)
{
    page *sheet = calloc(1, sizeof *sheet);
    if (!sheet)
        return FAIL(ST_NO_MEMORY, "page: out of memory");
    sheet->mark = mark;
    sheet->body = open_memstream(&sheet->text, &sheet->size);
    status st = sheet->body ? html_page_place(path, mark, sheet->path)
                            : FAIL(ST_NO_MEMORY, "page: out of memory");
    if (st == ST_OK)
        *out = sheet;
    else
        page_free(&sheet);
    return st;
}

const char *page_path(const page *sheet)
{
    return sheet->path;
}

void page_free(page **pp)
{
    page *sheet = *pp;
    if (!sheet)
        return;
    if (sheet->body)
        fclose(sheet->body);
    free(sheet->text);
    free(sheet);
    *pp = NULL;
}

/* Hashes the pictures of a document's sample: those of its prefix, and its own. */
static hash128 hash_pictures(const row *packed, const prompt_span items[PROMPT_SPANS])
{
    hash128 parts[PROMPT_SPANS];
    for (int part = 0; part < PROMPT_SPANS; part++) {
        const int64_t first = items[part].first_row * MERGE_SIDE * MERGE_SIDE;
        int64_t patches = 0;
        for (int64_t i = items[part].first; i < items[part].last; i++)
            patches += (int64_t)packed->grid_thw[3 * i] * packed->grid_thw[3 * i + 1] *
                       packed->grid_thw[3 * i + 2];
        parts[part] = hash_bytes(patches ? packed->pixels + first * PATCH_BYTES : NULL,
                                 (size_t)(patches * PATCH_BYTES));
    }
    return hash_bytes(parts, sizeof parts);
}

static status put_pictures(page *sheet, const row *packed, const prompt_span *items)
{
    int64_t patch = items->first_row * MERGE_SIDE * MERGE_SIDE;
    for (int64_t i = items->first; i < items->last; i++) {
        const int32_t *grid = &packed->grid_thw[3 * i];
        char *uri = NULL;
        TRY(picture_data_uri(packed, i, patch, &uri));
        fprintf(sheet->body, "<img alt=\"the picture asked about, %d x %d pixels\" src=\"%s\">\n",
                grid[2] * PATCH_SIDE, grid[1] * PATCH_SIDE, uri);
        free(uri);
        patch += (int64_t)grid[0] * grid[1] * grid[2];
    }
    return ST_OK;
}

/* Opens a new section unless the document shows the same pictures as the entry before. */
static status open_section(page *sheet, const row *packed, int64_t doc)
{
    prompt_span items[PROMPT_SPANS];
    prompt_items(packed, doc, items);
    const hash128 pictures = hash_pictures(packed, items);
    if (sheet->open && hash_equal(pictures, sheet->shown))
        return ST_OK;
    fputs(sheet->open ? "</table></div></section>\n<section>" : "<section>", sheet->body);
    sheet->open = true;
    sheet->shown = pictures;
    fputs("<div class=\"pictures\">\n", sheet->body);
    for (int part = 0; part < PROMPT_SPANS; part++)
        TRY(put_pictures(sheet, packed, &items[part]));
    fputs("</div>\n<div class=\"questions\"><table><tr><th>question</th><th>reference</th>"
          "<th>model</th><th>score</th><th>sample</th></tr>\n",
          sheet->body);
    return ST_OK;
}

static bool is_right(const page_entry *entry)
{
    return entry->score >= 0 ? entry->score >= 0.5 : entry->verdict != PAGE_WRONG;
}

status page_add(page *sheet, const row *packed, int64_t doc, const page_entry *entry)
{
    static const char *const verdicts[] = {"wrong", "right", "right so far"};
    sheet->entries++;
    sheet->full = sheet->full || (sheet->written >= PAGE_MOST && !entry->goes_on);
    if (sheet->full)
        return ST_OK;
    TRY(open_section(sheet, packed, doc));
    const char *cells[] = {entry->question, entry->reference, entry->words};
    sheet->written++;
    sheet->right += is_right(entry);
    sheet->conversations = sheet->conversations || entry->goes_on;
    fprintf(sheet->body, "<tr class=\"%s%s\">", is_right(entry) ? "right" : "wrong",
            entry->goes_on ? " goes-on" : "");
    for (int i = 0; i < 3; i++) {
        fputs("<td>", sheet->body);
        html_put_text(sheet->body, cells[i]);
        fputs(i == 2 && entry->is_cut ? "&hellip;</td>" : "</td>", sheet->body);
    }
    if (entry->score >= 0)
        fprintf(sheet->body, "<td>%.0f %%</td>", 100 * entry->score);
    else
        fprintf(sheet->body, "<td>%s</td>", verdicts[entry->verdict]);
    fprintf(sheet->body, "<td>%" PRIu64 "</td></tr>\n", packed->doc_sample_id[doc]);
    return ST_OK;
}

static void put_shares(FILE *file, const char *what, const vqa_share *list, int count)
{
    if (count == 0)
        return;
    fprintf(file,
            "<table class=\"shares\"><tr><th>%s</th><th>questions</th><th>accuracy</th></tr>\n",
            what);
    for (int i = 0; i < count; i++) {
        fputs("<tr><td>", file);
        html_put_text(file, list[i].type);
        fprintf(file, "</td><td>%" PRId64 "</td><td>%.2f %%</td></tr>\n", list[i].count,
                vqa_share_percent(&list[i]));
    }
    fputs("</table>\n", file);
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
    "section th:nth-child(n+2){width:18%}section th:nth-child(n+4){width:5em}"
    "th{font-weight:600;color:var(--faint)}.goes-on td:first-child{padding-left:1.6em}"
    ".right td:nth-child(n+3){color:var(--good)}.wrong td:nth-child(n+3){color:var(--bad)}"
    "section table tr td:nth-child(5){color:var(--faint)}"
    ".note{color:var(--faint);max-width:62em}"
    "@media(max-width:600px){.pictures{flex-basis:100%}th,td{padding:3px 4px;font-size:14px}}";

/* Says what is on the page and how it was judged. */
static void put_note(FILE *file, const page *sheet, const vqa_tally *tally)
{
    fprintf(file, "<p class=\"note\">%" PRId64, sheet->written);
    if (sheet->written < sheet->entries)
        fprintf(file, " of %" PRId64, sheet->entries);
    fprintf(file,
            " questions below are answered in the model's own words, at most %d tokens; %" PRId64
            " answers are right. ",
            GENERATE_MAX, sheet->right);
    fputs(tally->all.count
              ? "A score in percent is the agreement with annotators, and right from 50 % "
                "on; without them an answer"
              : "An answer",
          file);
    fputs(" is right if its words are the reference's.", file);
    if (sheet->conversations)
        fputs(" A later question of a conversation, indented, is asked after the reference answers "
              "to those before it.",
              file);
    fputs("</p>\n", file);
}

/* The accuracy by type, closed at first. */
static void put_types(FILE *file, const vqa_tally *tally)
{
    if (!tally->n_answer && !tally->n_question)
        return;
    fputs("<details><summary>Agreement with annotators by type of question</summary>\n"
          "<div class=\"types\">\n",
          file);
    put_shares(file, "answer type", tally->answer, tally->n_answer);
    put_shares(file, "question type", tally->question, tally->n_question);
    fputs("</div></details>\n", file);
}

static void put_page(FILE *file, const page *sheet, const html_fact *facts, int count,
                     const vqa_tally *tally)
{
    html_page_begin(file, "Held-out questions", style, sheet->mark);
    html_page_facts(file, facts, count);
    put_types(file, tally);
    put_note(file, sheet, tally);
    fwrite(sheet->text, 1, sheet->size, file);
    if (sheet->open)
        fputs("</table></div></section>\n", file);
    html_page_end(file);
}

status page_try(const char *path)
{
    char aside[STATUS_PATH_MAX];
    FILE *file;
    status st = html_page_open(path, &file);
    if (st != ST_OK)
        return status_context(st, "eval.page");
    fclose(file);
    snprintf(aside, sizeof aside, "%s.tmp", path);
    unlink(aside);
    return ST_OK;
}

status page_finish(page *sheet, const html_fact *facts, int count, const vqa_tally *tally)
{
    FILE *file;
    if (fflush(sheet->body) != 0)
        return FAIL(ST_NO_MEMORY, "page: out of memory");
    status st = html_page_open(sheet->path, &file);
    if (st == ST_OK) {
        put_page(file, sheet, facts, count, tally);
        st = html_page_close(sheet->path, &file);
    }
    return st == ST_OK ? ST_OK : status_context(st, "eval.page");
}
