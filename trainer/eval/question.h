/* question.h: finds the question that a held-out reply answers,
 * and writes it as a person reads it. */
#ifndef TESSERA_TRAINER_EVAL_QUESTION_H
#define TESSERA_TRAINER_EVAL_QUESTION_H

#include "common/tokenizer/tokenizer.h"
#include "trainer/generate/replies.h"

/* *out = the text of the user's turn before the reply, on one line: its words
 * with single spaces between them, and "[picture]" for pictures that stand between words. Pictures
 * before or after all words leave no trace. In a document without turns (plain text) it is
 * everything before the reply. The caller frees it. */
WARN_UNUSED status question_of_reply(const row *packed, const reply *to,
                                     const tokenizer *vocabulary, char **out);

#endif
