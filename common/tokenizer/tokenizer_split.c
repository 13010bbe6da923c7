/* SPDX-License-Identifier: Apache-2.0 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "common/tokenizer/tokenizer_impl.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

/* ---- added tokens ---- */

void added_set_done(added_set *set)
{
    for (size_t i = 0; i < set->count; i++)
        free(set->tokens[i].text);
    free(set->tokens);
    *set = (added_set){0};
}

status added_set_put(added_set *set, const uint8_t *text, size_t size, int32_t id)
{
    if (set->count == set->capacity) {
        size_t capacity = set->capacity * 2 + 32;
        added_token *grown = realloc(set->tokens, capacity * sizeof *grown);
        if (!grown)
            return FAIL(ST_NO_MEMORY, "no memory for %zu added tokens", capacity);
        set->tokens = grown;
        set->capacity = capacity;
    }
    char *copy = malloc(size + 1);
    if (!copy)
        return FAIL(ST_NO_MEMORY, "no memory for an added token of %zu bytes", size);
    memcpy(copy, text, size);
    copy[size] = 0;
    set->tokens[set->count++] = (added_token){copy, size, id};
    return ST_OK;
}

static int by_first_byte_then_longest(const void *left, const void *right)
{
    const added_token *first = left, *second = right;
    uint8_t fx = (uint8_t)first->text[0], fy = (uint8_t)second->text[0];
    if (fx != fy)
        return fx < fy ? -1 : 1;
    if (first->size != second->size)
        return first->size > second->size ? -1 : 1;
    return memcmp(first->text, second->text, first->size);
}

void added_set_seal(added_set *set)
{
    if (set->count)
        qsort(set->tokens, set->count, sizeof *set->tokens, by_first_byte_then_longest);
    size_t i = 0;
    for (int j = 0; j < 256; j++) {
        set->first[j] = i;
        while (i < set->count && (uint8_t)set->tokens[i].text[0] == j)
            i++;
    }
    set->first[256] = set->count;
}

const added_token *added_set_find(const added_set *set, const uint8_t *text, size_t size,
                                  size_t from, size_t *out_at)
{
    if (!set->count)
        return NULL;
    for (size_t at = from; at < size; at++)
        for (size_t i = set->first[text[at]]; i < set->first[text[at] + 1]; i++) {
            const added_token *token = &set->tokens[i];
            if (token->size <= size - at && !memcmp(token->text, text + at, token->size)) {
                *out_at = at;
                return token;
            }
        }
    return NULL;
}

/* ---- the expression ---- */

/* Expressions other than the published one are matched by PCRE2. PCRE2 counts U+180E (Mongolian
 * vowel separator) as white space, but Unicode since 6.3 and the tokenizers library do not. So
 * before matching it is replaced by U+200B, which has the same category (Cf) and the same length in
 * bytes, and is white space to neither. */
static const uint8_t VOWEL_SEPARATOR[3] = {0xE1, 0xA0, 0x8E};
static const uint8_t ZERO_WIDTH_SPACE[3] = {0xE2, 0x80, 0x8B};

enum {
    JIT_STACK_START = 32 * 1024, /* bytes, PCRE2's own default */
    JIT_STACK_MAX = 1024 * 1024,
    ERROR_TEXT = 256,
};

struct splitter {
    word_classes *words; /* of the published expression, else NULL */
    pcre2_code *code;    /* of any other expression, else NULL */
};

struct splitter_scratch {
    pcre2_match_data *match; /* one pair of offsets, since groups are not used */
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    uint8_t *masked;
    size_t capacity;
};

static status compile_pattern(const char *expression, size_t size, const char *file,
                              pcre2_code **out)
{
    int code;
    PCRE2_SIZE at;
    char text[ERROR_TEXT];
    pcre2_code *compiled =
        pcre2_compile((PCRE2_SPTR)expression, size, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C,
                      &code, &at, NULL);
    if (!compiled) {
        pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text);
        return FAIL_IN(ST_BAD_INPUT, file,
                       "pre_tokenizer: expression \"%.200s\" does not compile at byte %zu: %s",
                       expression, (size_t)at, text);
    }
    /* A hardened kernel may refuse JIT. Matching is then slower, with the same result. */
    (void)pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);
    *out = compiled;
    return ST_OK;
}

status splitter_new(const char *expression, size_t size, const char *file, splitter **out)
{
    splitter *split = calloc(1, sizeof *split);
    if (!split)
        return FAIL(ST_NO_MEMORY, "no memory for the pre-tokeniser expression");
    status st = words_know(expression, size)
                    ? word_classes_new(&split->words)
                    : compile_pattern(expression, size, file, &split->code);
    if (st != ST_OK) {
        splitter_free(&split);
        return st;
    }
    *out = split;
    return ST_OK;
}

void splitter_free(splitter **split)
{
    if (!*split)
        return;
    word_classes_free(&(*split)->words);
    pcre2_code_free((*split)->code);
    free(*split);
    *split = NULL;
}

status splitter_scratch_new(splitter_scratch **out)
{
    splitter_scratch *scratch = calloc(1, sizeof *scratch);
    if (!scratch)
        return FAIL(ST_NO_MEMORY, "no memory for matching");
    scratch->match = pcre2_match_data_create(1, NULL);
    scratch->context = pcre2_match_context_create(NULL);
    scratch->stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_MAX, NULL);
    if (!scratch->match || !scratch->context || !scratch->stack) {
        splitter_scratch_free(&scratch);
        return FAIL(ST_NO_MEMORY, "no memory for matching");
    }
    pcre2_jit_stack_assign(scratch->context, NULL, scratch->stack);
    *out = scratch;
    return ST_OK;
}

void splitter_scratch_free(splitter_scratch **scratch)
{
    if (!*scratch)
        return;
    pcre2_match_data_free((*scratch)->match);
    pcre2_match_context_free((*scratch)->context);
    pcre2_jit_stack_free((*scratch)->stack);
    free((*scratch)->masked);
    free(*scratch);
    *scratch = NULL;
}

status split_begin(const splitter *split, splitter_scratch *scratch, const uint8_t *text,
                   size_t size, split_walk *out)
{
    *out = (split_walk){.text = text, .size = size};
    if (split->words || !size || !memmem(text, size, VOWEL_SEPARATOR, sizeof VOWEL_SEPARATOR))
        return ST_OK;
    if (size > scratch->capacity) {
        free(scratch->masked);
        scratch->capacity = 0;
        scratch->masked = malloc(size);
        if (!scratch->masked)
            return FAIL(ST_NO_MEMORY, "no memory to match %zu bytes of text", size);
        scratch->capacity = size;
    }
    memcpy(scratch->masked, text, size);
    for (uint8_t *mark = scratch->masked;
         (mark = memmem(mark, size - (size_t)(mark - scratch->masked), VOWEL_SEPARATOR,
                        sizeof VOWEL_SEPARATOR)) != NULL;)
        memcpy(mark, ZERO_WIDTH_SPACE, sizeof ZERO_WIDTH_SPACE);
    out->text = scratch->masked;
    return ST_OK;
}

/* Finds the next match at or after walk->search. If there is none, notes an empty one at the end of
 * the text. */
static status find_match(const splitter *split, splitter_scratch *scratch, split_walk *walk)
{
    walk->match_start = walk->match_end = walk->size;
    if (walk->search >= walk->size)
        return ST_OK;
    int found = pcre2_match(split->code, walk->text, walk->size, walk->search, PCRE2_NO_UTF_CHECK,
                            scratch->match, scratch->context);
    if (found == PCRE2_ERROR_NOMATCH)
        return ST_OK;
    if (found < 0) {
        char text[ERROR_TEXT];
        pcre2_get_error_message(found, (PCRE2_UCHAR *)text, sizeof text);
        return FAIL(ST_BAD_INPUT, "the pre-tokeniser expression failed at byte %zu of %zu: %s",
                    walk->search, walk->size, text);
    }
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(scratch->match);
    if (range[0] < walk->search || range[1] < range[0])
        return FAIL(ST_BAD_INPUT, "the pre-tokeniser expression moves its match outside the text "
                                  "(\\K in a look-around)");
    walk->match_start = range[0];
    walk->match_end = range[1];
    return ST_OK;
}

static size_t next_character(const split_walk *walk, size_t at)
{
    do
        at++;
    while (at < walk->size && (walk->text[at] & 0xC0) == 0x80);
    return at;
}

status split_next(const splitter *split, splitter_scratch *scratch, split_walk *walk,
                  size_t *out_start, size_t *out_end, bool *out_more)
{
    *out_more = walk->at < walk->size;
    if (!*out_more)
        return ST_OK;
    *out_start = walk->at;
    if (split->words) {
        *out_end = walk->at = words_next(split->words, walk->text, walk->size, walk->at);
        return ST_OK;
    }
    if (walk->match_end <= walk->at) { /* no match is waiting */
        TRY(find_match(split, scratch, walk));
        /* An empty match cuts the text too, but not at the start of a piece, where it would cut
         * nothing off. */
        while (walk->match_end == walk->at) {
            walk->search = next_character(walk, walk->at);
            TRY(find_match(split, scratch, walk));
        }
    }
    if (walk->match_start > walk->at) { /* the text before the match is a piece too */
        *out_end = walk->at = walk->match_start;
        walk->search =
            walk->at == walk->match_end ? next_character(walk, walk->at) : walk->match_end;
        return ST_OK;
    }
    *out_end = walk->at = walk->search = walk->match_end;
    return ST_OK;
}
