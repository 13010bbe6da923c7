#define PCRE2_CODE_UNIT_WIDTH 8
#include "common/tokenizer/tokenizer_split.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "common/tokenizer/tokenizer_words.h"

/* ---- added tokens ---- */

void added_set_done(added_set *s)
{
    for (size_t i = 0; i < s->count; i++)
        free(s->tokens[i].text);
    free(s->tokens);
    *s = (added_set){0};
}

status added_set_put(added_set *s, const uint8_t *text, size_t size, int32_t id)
{
    if (s->count == s->capacity) {
        size_t capacity = s->capacity * 2 + 32;
        added_token *grown = realloc(s->tokens, capacity * sizeof *grown);
        if (!grown)
            return FAIL(ST_NO_MEMORY, "no memory for %zu added tokens", capacity);
        s->tokens = grown;
        s->capacity = capacity;
    }
    char *copy = malloc(size + 1);
    if (!copy)
        return FAIL(ST_NO_MEMORY, "no memory for an added token of %zu bytes", size);
    memcpy(copy, text, size);
    copy[size] = 0;
    s->tokens[s->count++] = (added_token){copy, size, id};
    return ST_OK;
}

static int by_first_byte_then_longest(const void *a, const void *b)
{
    const added_token *x = a, *y = b;
    uint8_t fx = (uint8_t)x->text[0], fy = (uint8_t)y->text[0];
    if (fx != fy)
        return fx < fy ? -1 : 1;
    if (x->size != y->size)
        return x->size > y->size ? -1 : 1;
    return memcmp(x->text, y->text, x->size);
}

void added_set_seal(added_set *s)
{
    if (s->count)
        qsort(s->tokens, s->count, sizeof *s->tokens, by_first_byte_then_longest);
    size_t i = 0;
    for (int b = 0; b < 256; b++) {
        s->first[b] = i;
        while (i < s->count && (uint8_t)s->tokens[i].text[0] == b)
            i++;
    }
    s->first[256] = s->count;
}

const added_token *added_set_find(const added_set *s, const uint8_t *text, size_t size, size_t from,
                                  size_t *out_at)
{
    if (!s->count)
        return NULL;
    for (size_t at = from; at < size; at++)
        for (size_t i = s->first[text[at]]; i < s->first[text[at] + 1]; i++) {
            const added_token *token = &s->tokens[i];
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
    splitter *s = calloc(1, sizeof *s);
    if (!s)
        return FAIL(ST_NO_MEMORY, "no memory for the pre-tokeniser expression");
    status st = words_know(expression, size) ? word_classes_new(&s->words)
                                             : compile_pattern(expression, size, file, &s->code);
    if (st != ST_OK) {
        splitter_free(&s);
        return st;
    }
    *out = s;
    return ST_OK;
}

void splitter_free(splitter **s)
{
    if (!*s)
        return;
    word_classes_free(&(*s)->words);
    pcre2_code_free((*s)->code);
    free(*s);
    *s = NULL;
}

status splitter_scratch_new(splitter_scratch **out)
{
    splitter_scratch *x = calloc(1, sizeof *x);
    if (!x)
        return FAIL(ST_NO_MEMORY, "no memory for matching");
    x->match = pcre2_match_data_create(1, NULL);
    x->context = pcre2_match_context_create(NULL);
    x->stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_MAX, NULL);
    if (!x->match || !x->context || !x->stack) {
        splitter_scratch_free(&x);
        return FAIL(ST_NO_MEMORY, "no memory for matching");
    }
    pcre2_jit_stack_assign(x->context, NULL, x->stack);
    *out = x;
    return ST_OK;
}

void splitter_scratch_free(splitter_scratch **x)
{
    if (!*x)
        return;
    pcre2_match_data_free((*x)->match);
    pcre2_match_context_free((*x)->context);
    pcre2_jit_stack_free((*x)->stack);
    free((*x)->masked);
    free(*x);
    *x = NULL;
}

status split_begin(const splitter *s, splitter_scratch *x, const uint8_t *text, size_t size,
                   split_walk *out)
{
    *out = (split_walk){.text = text, .size = size};
    if (s->words || !size || !memmem(text, size, VOWEL_SEPARATOR, sizeof VOWEL_SEPARATOR))
        return ST_OK;
    if (size > x->capacity) {
        free(x->masked);
        x->capacity = 0;
        x->masked = malloc(size);
        if (!x->masked)
            return FAIL(ST_NO_MEMORY, "no memory to match %zu bytes of text", size);
        x->capacity = size;
    }
    memcpy(x->masked, text, size);
    for (uint8_t *p = x->masked; (p = memmem(p, size - (size_t)(p - x->masked), VOWEL_SEPARATOR,
                                             sizeof VOWEL_SEPARATOR)) != NULL;)
        memcpy(p, ZERO_WIDTH_SPACE, sizeof ZERO_WIDTH_SPACE);
    out->text = x->masked;
    return ST_OK;
}

/* Finds the next match at or after w->search. If there is none, notes an empty one at the end of
 * the text. */
static status find_match(const splitter *s, splitter_scratch *x, split_walk *w)
{
    w->match_start = w->match_end = w->size;
    if (w->search >= w->size)
        return ST_OK;
    int found =
        pcre2_match(s->code, w->text, w->size, w->search, PCRE2_NO_UTF_CHECK, x->match, x->context);
    if (found == PCRE2_ERROR_NOMATCH)
        return ST_OK;
    if (found < 0) {
        char text[ERROR_TEXT];
        pcre2_get_error_message(found, (PCRE2_UCHAR *)text, sizeof text);
        return FAIL(ST_BAD_INPUT, "the pre-tokeniser expression failed at byte %zu of %zu: %s",
                    w->search, w->size, text);
    }
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(x->match);
    if (range[0] < w->search || range[1] < range[0])
        return FAIL(ST_BAD_INPUT, "the pre-tokeniser expression moves its match outside the text "
                                  "(\\K in a look-around)");
    w->match_start = range[0];
    w->match_end = range[1];
    return ST_OK;
}

static size_t next_character(const split_walk *w, size_t at)
{
    do
        at++;
    while (at < w->size && (w->text[at] & 0xC0) == 0x80);
    return at;
}

status split_next(const splitter *s, splitter_scratch *x, split_walk *w, size_t *out_start,
                  size_t *out_end, bool *out_more)
{
    *out_more = w->at < w->size;
    if (!*out_more)
        return ST_OK;
    *out_start = w->at;
    if (s->words) {
        *out_end = w->at = words_next(s->words, w->text, w->size, w->at);
        return ST_OK;
    }
    if (w->match_end <= w->at) { /* no match is waiting */
        TRY(find_match(s, x, w));
        /* An empty match cuts the text too, but not at the start of a piece, where it would cut
         * nothing off. */
        while (w->match_end == w->at) {
            w->search = next_character(w, w->at);
            TRY(find_match(s, x, w));
        }
    }
    if (w->match_start > w->at) { /* the text before the match is a piece too */
        *out_end = w->at = w->match_start;
        w->search = w->at == w->match_end ? next_character(w, w->at) : w->match_end;
        return ST_OK;
    }
    *out_end = w->at = w->search = w->match_end;
    return ST_OK;
}
