/* SPDX-License-Identifier: Apache-2.0 */
/* answers.h: lets the model answer held-out questions in its own words, by greedy generation.
 *
 * A question is answered for two reasons. If its row brings the annotators' answers, it is judged
 * by them (vqa_score.h), up to eval.generate questions. And the first `show` questions are printed;
 * of a row, the first question about each picture comes before further ones. Every answered
 * question also goes on eval.page, and with it all others of its document, since a conversation is
 * read as a whole. Without annotators an answer is right if its words are the reference's. */
#ifndef TESSERA_TRAINER_EVAL_ANSWERS_H
#define TESSERA_TRAINER_EVAL_ANSWERS_H

#include "common/tokenizer/tokenizer.h"
#include "trainer/eval/page.h"
#include "trainer/eval/vqa_score.h"
#include "trainer/generate/prompt.h"
#include "trainer/run/session.h"

/* *out = the text of the user's turn before the reply, on one line: its words
 * with single spaces between them, and "[picture]" for pictures that stand between words. Pictures
 * before or after all words leave no trace. In a document without turns (plain text) it is
 * everything before the reply. The caller frees it. */
WARN_UNUSED status question_of_reply(const row *packed, const reply *to,
                                     const tokenizer *vocabulary, char **out);

typedef struct answers {
    session *session;
    int64_t show;     /* how many questions are still to be printed */
    int64_t judged;   /* how many questions have been chosen for the tally */
    vqa_tally *tally; /* borrowed; judged answers are added */
    page *page;       /* borrowed; NULL: there is no page */
    /* The first failure with an answer on this rank alone. After it no answer is printed or judged
     * here, and the caller passes it on with agree_rows before the next row. */
    status_note trouble;
} answers;

/* Answers questions of a row with these replies (replies_of_row). All ranks call it with the same
 * rows. Does nothing if the row is of a kind that cannot be generated from (generate_can), or the
 * session has no generator or tokenizer. */
WARN_UNUSED status answers_row(answers *state, const row *packed, const reply *replies,
                               int64_t count);

#endif
