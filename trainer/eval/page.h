/* page.h: held-out questions with their pictures on one HTML page that opens without network: what
 * was asked, the reference, the model's own words, what they are worth. */
#ifndef TESSERA_TRAINER_EVAL_PAGE_H
#define TESSERA_TRAINER_EVAL_PAGE_H

#include "trainer/eval/vqa_tally.h"
#include "proto/batch.h"

typedef struct page page;

/* Could it be written? For the start of a run; leaves nothing. */
WARN_UNUSED status page_try(const char *path);
/* Written to `path` by page_finish; borrowed. */
WARN_UNUSED status page_new(const char *path, page **out);
void page_free(page **p);

typedef struct page_entry {
    const char *question, *reference, *words;
    double score; /* accuracy of the words, 0 to 1; below 0: nobody judged them */
} page_entry;

/* Document doc of r. Questions about the picture of the entry before stand under it. Behind
 * PAGE_MOST entries: counted only. */
enum { PAGE_MOST = 500 };
WARN_UNUSED status page_add(page *p, const row *r, int64_t doc, const page_entry *e);
/* summary: plain text for the top. The file is replaced at once or not at all. */
WARN_UNUSED status page_finish(page *p, const char *summary, const vqa_tally *t);

#endif
