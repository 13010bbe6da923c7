/* SPDX-License-Identifier: Apache-2.0 */
/* page.h: writes held-out questions and their pictures on one HTML page that opens without a
 * network: the question, the reference answer, the model's own words, and how they were judged. */
#ifndef TESSERA_TRAINER_EVAL_PAGE_H
#define TESSERA_TRAINER_EVAL_PAGE_H

#include "proto/row/batch.h"
#include "trainer/eval/html_page.h"
#include "trainer/eval/vqa_score.h"

/* *out = "data:image/png;base64,.." for visual item `item` of `packed`, a still picture whose
 * patches begin at first_patch. The caller frees it. */
WARN_UNUSED status picture_data_uri(const row *packed, int64_t item, int64_t first_patch,
                                    char **out);

typedef struct page page;

/* Checks at the start of a run that the page can be written, and leaves nothing behind.
 * ST_CANT_CREATE, with the reason, if not. */
WARN_UNUSED status page_try(const char *path);
/* Makes an empty page, kept in memory until page_finish writes it to `path`, or beside it if that
 * is another's (html_page_place). */
WARN_UNUSED status page_new(const char *path, html_mark mark, page **out);
/* Frees *pp and sets it to NULL; NULL in it is accepted. */
void page_free(page **pp);

/* What the words are beside the reference. Right so far: they are as long as an answer may be, and
 * the reference goes on. */
typedef enum page_verdict { PAGE_WRONG, PAGE_RIGHT, PAGE_RIGHT_SO_FAR } page_verdict;

typedef struct page_entry {
    const char *question, *reference, *words;
    double
        score; /* accuracy by the annotators' answers, 0 to 1; below 0: judged by the reference */
    page_verdict verdict;
    bool goes_on; /* a later question of the document of the entry before */
    bool is_cut;  /* the words end where an answer may not be longer */
} page_entry;

/* Adds document doc of r. A question about the same pictures as the entry before goes under them.
 * After PAGE_MOST entries further documents are only counted. */
enum { PAGE_MOST = 500 };
WARN_UNUSED status page_add(page *sheet, const row *packed, int64_t doc, const page_entry *entry);
/* Where the page is written; valid while it exists. */
const char *page_path(const page *sheet);
/* Writes the page with the `count` facts at its top and the accuracy by type of question. The file
 * is replaced as a whole or not at all. ST_CANT_CREATE or ST_IO, with the reason. */
WARN_UNUSED status page_finish(page *sheet, const html_fact *facts, int count,
                               const vqa_tally *tally);

#endif
