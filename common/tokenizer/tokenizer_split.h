/* tokenizer_split.h: the two ways text is cut before merging: by added tokens and by the
 * pre-tokeniser expression. The only door to PCRE2. */
#ifndef TESSERA_COMMON_TOKENIZER_SPLIT_H
#define TESSERA_COMMON_TOKENIZER_SPLIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

typedef struct added_token {
    char *text; /* heap; not empty */
    size_t size;
    int32_t id;
} added_token;

typedef struct added_set {
    added_token *tokens; /* sorted by first byte, longer ones first */
    size_t n, capacity;
    size_t first[257]; /* tokens that start with byte b: [first[b], first[b + 1]) */
} added_set;

void added_set_done(added_set *s);
/* Copies the text. */
WARN_UNUSED status added_set_put(added_set *s, const uint8_t *text, size_t size, int32_t id);
/* Called once after the last put. */
void added_set_seal(added_set *s);
/* Leftmost token at or after `from`, the longest that starts there; NULL if none. */
const added_token *added_set_find(const added_set *s, const uint8_t *text, size_t size, size_t from,
                                  size_t *out_at);

typedef struct splitter splitter;
typedef struct splitter_scratch splitter_scratch;

/* The published expression is matched on the reference's character classes (tokenizer_words.h), any
 * other is compiled by PCRE2 and has the classes of the Unicode that PCRE2 was built with. file
 * names it in errors. */
WARN_UNUSED status splitter_new(const char *expression, size_t size, const char *file,
                                splitter **out);
void splitter_free(splitter **s);
WARN_UNUSED status splitter_scratch_new(splitter_scratch **out);
void splitter_scratch_free(splitter_scratch **s);

/* A walk over the pieces of one valid UTF-8 text: matches, and what stands between matches. */
typedef struct split_walk {
    const uint8_t *text; /* what is matched: the text, or a copy with one character masked */
    size_t size;
    size_t at;          /* start of the next piece */
    size_t search;      /* where the next match is looked for, >= at */
    size_t match_start; /* a match found and not yet given, if match_end > at */
    size_t match_end;
} split_walk;

WARN_UNUSED status split_begin(const splitter *s, splitter_scratch *x, const uint8_t *text,
                               size_t size, split_walk *out);
/* The next piece is text[*out_start, *out_end); *out_more false after the last. */
WARN_UNUSED status split_next(const splitter *s, splitter_scratch *x, split_walk *w,
                              size_t *out_start, size_t *out_end, bool *out_more);

#endif
