/* tokenizer_words.h: matches the pre-tokeniser expression of Qwen2 and Qwen3 by hand.
 *
 * Every published Qwen2 and Qwen3 tokenizer.json has the same expression. This code cuts text as
 * the tokenizers library does with it, using that library's character classes
 * (tokenizer_classes.h), which a regular-expression library of the system does not have. The pieces
 * leave no gaps: each begins where the one before ended. */
#ifndef TESSERA_COMMON_TOKENIZER_WORDS_H
#define TESSERA_COMMON_TOKENIZER_WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

/* Whether this is the expression that words_next matches. */
bool words_know(const char *expression, size_t size);

typedef struct word_classes word_classes; /* the class of each code point; read-only */

WARN_UNUSED status word_classes_new(word_classes **out);
void word_classes_free(word_classes **classes);

/* Where the piece ends that begins at `at` < size of a valid UTF-8 text. */
size_t words_next(const word_classes *classes, const uint8_t *text, size_t size, size_t at);

#endif
