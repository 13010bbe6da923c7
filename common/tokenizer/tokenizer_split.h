/* tokenizer_split.h: the two ways in which text is cut before it is merged: at added tokens, and by
 * the pre-tokeniser's regular expression. tokenizer_split.c is the only file that includes PCRE2.
 */
#ifndef TESSERA_COMMON_TOKENIZER_SPLIT_H
#define TESSERA_COMMON_TOKENIZER_SPLIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

typedef struct added_token {
    char *text; /* on the heap; never empty */
    size_t size;
    int32_t id;
} added_token;

typedef struct added_set {
    added_token *tokens; /* sorted by their first byte, and then by length, the longest first */
    size_t count, capacity;
    size_t first[257]; /* the tokens that begin with byte b are [first[b], first[b + 1]) */
} added_set;

void added_set_done(added_set *set);
/* Adds a token; its text is copied. */
WARN_UNUSED status added_set_put(added_set *set, const uint8_t *text, size_t size, int32_t id);
/* Sorts the set. Call it once, after the last put and before the first find. */
void added_set_seal(added_set *set);
/* Finds the leftmost token that begins at or after `from`, and of those that begin there the
 * longest. *out_at is its offset. NULL if there is none. */
const added_token *added_set_find(const added_set *set, const uint8_t *text, size_t size,
                                  size_t from, size_t *out_at);

typedef struct splitter splitter;
typedef struct splitter_scratch splitter_scratch;

/* Prepares an expression. The one that Qwen2 and Qwen3 publish is matched by tokenizer_words.h,
 * with the character classes of the tokenizers library. Any other is compiled by PCRE2, and has the
 * character classes of the Unicode version that PCRE2 was built with. Errors name `file`. */
WARN_UNUSED status splitter_new(const char *expression, size_t size, const char *file,
                                splitter **out);
void splitter_free(splitter **split);
WARN_UNUSED status splitter_scratch_new(splitter_scratch **out);
void splitter_scratch_free(splitter_scratch **scratch);

/* A walk over the pieces of a valid UTF-8 text. Matches are pieces, and so is the text between two
 * matches. */
typedef struct split_walk {
    const uint8_t *text; /* the text, or a copy with one character replaced for PCRE2 */
    size_t size;
    size_t at;          /* start of the next piece */
    size_t search;      /* where the next match is searched for, at or after `at` */
    size_t match_start; /* a match that was found and not given out yet, if match_end > at */
    size_t match_end;
} split_walk;

/* Begins a walk. text is borrowed until its end. */
WARN_UNUSED status split_begin(const splitter *split, splitter_scratch *scratch,
                               const uint8_t *text, size_t size, split_walk *out);
/* Gives the next piece, the bytes [*out_start, *out_end) of the text. *out_more is false, and there
 * is no piece, after the last one. */
WARN_UNUSED status split_next(const splitter *split, splitter_scratch *scratch, split_walk *walk,
                              size_t *out_start, size_t *out_end, bool *out_more);

#endif
