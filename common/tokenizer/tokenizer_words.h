/* tokenizer_words.h: the published pre-tokeniser expression, matched by hand.
 *
 * Every Qwen2 and Qwen3 tokenizer.json has the same expression. This cuts text as the reference's
 * engine does with it, on the reference's own character classes (tokenizer_classes.h), which a
 * general engine of the system does not have. Text is cut without gaps: each piece begins where the
 * one before ended. */
#ifndef TESSERA_COMMON_TOKENIZER_WORDS_H
#define TESSERA_COMMON_TOKENIZER_WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

/* True if words_next matches this expression. */
bool words_know(const char *expression, size_t size);

typedef struct word_classes word_classes; /* class by code point; read-only */

WARN_UNUSED status word_classes_new(word_classes **out);
void word_classes_free(word_classes **w);

/* End of the piece that begins at `at` < size of a valid UTF-8 text. */
size_t words_next(const word_classes *w, const uint8_t *text, size_t size, size_t at);

#endif
