/* question.h: finds the question of a held-out document and writes it as a person reads it. */
#ifndef TESSERA_TRAINER_EVAL_QUESTION_H
#define TESSERA_TRAINER_EVAL_QUESTION_H

#include "common/tokenizer/tokenizer.h"
#include "proto/batch.h"

/* *out = the text of the user's turn before the document's first target, on one line: its words
 * with single spaces between them, and "[picture]" for pictures that stand between words. Pictures
 * before or after all words leave no trace. In a document without turns (plain text) it is
 * everything before the first target. The caller frees it. */
WARN_UNUSED status question_of_document(const row *r, int64_t doc, const tokenizer *t, char **out);

#endif
