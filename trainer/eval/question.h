/* question.h: what a held-out document asks, as a person reads it. */
#ifndef TESSERA_TRAINER_EVAL_QUESTION_H
#define TESSERA_TRAINER_EVAL_QUESTION_H

#include "common/tokenizer/tokenizer.h"
#include "proto/batch.h"

/* The text of the user's turn before the document's first target, on one line: its words with
 * single spaces between them, "[picture]" where pictures stand between words, and nothing where
 * they stand before or after all of them. Of a document without turns (plain text): all that stands
 * before its first target. Heap. */
WARN_UNUSED status question_of_document(const row *r, int64_t doc, const tokenizer *t, char **out);

#endif
