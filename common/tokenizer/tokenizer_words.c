/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_words.c: see tokenizer_words.h. words_next tries the alternatives of the expression in
 * their order, by the kind of the first one or two characters. */
#include "common/tokenizer/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

#include "common/tokenizer/tokenizer_text.h"

static const char EXPRESSION[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

bool words_know(const char *expression, size_t size)
{
    return size == sizeof EXPRESSION - 1 && !memcmp(expression, EXPRESSION, size);
}

typedef enum kind { OTHER, LETTER, NUMBER, SPACE, NEWLINE } kind; /* NEWLINE: \r or \n */

enum {
    TABLE_END = 0x40000
}; /* letters, numbers and spaces all lie below; word_classes_new checks */

struct word_classes {
    uint8_t kind_of[TABLE_END]; /* code points at and above TABLE_END are OTHER */
};

static bool mark_ranges(word_classes *classes, code_set set, kind wanted)
{
    for (size_t i = 0; i < set.count; i++) {
        const code_range range = set.ranges[i];
        if (range.last >= TABLE_END)
            return false;
        memset(classes->kind_of + range.first, wanted, (size_t)(range.last - range.first + 1));
    }
    return true;
}

status word_classes_new(word_classes **out)
{
    word_classes *classes = calloc(1, sizeof *classes);
    if (!classes)
        return FAIL(ST_NO_MEMORY, "no memory for the tokenizer's character classes");
    if (!mark_ranges(classes, code_letters, LETTER) ||
        !mark_ranges(classes, code_numbers, NUMBER) || !mark_ranges(classes, code_spaces, SPACE)) {
        free(classes);
        return FAIL(ST_INTERNAL, "a character class reaches beyond U+%X", TABLE_END - 1);
    }
    classes->kind_of['\r'] = classes->kind_of['\n'] = NEWLINE;
    *out = classes;
    return ST_OK;
}

void word_classes_free(word_classes **classes)
{
    free(*classes);
    *classes = NULL;
}

/* A character of valid text. */
typedef struct character {
    kind kind;
    size_t end; /* where the next one begins */
} character;

static inline character read_character(const word_classes *classes, const uint8_t *text, size_t at)
{
    const uint8_t *from = text + at;
    if (from[0] < 0x80)
        return (character){classes->kind_of[from[0]], at + 1};
    if (from[0] < 0xE0)
        return (character){classes->kind_of[(from[0] & 0x1F) << 6 | (from[1] & 0x3F)], at + 2};
    if (from[0] < 0xF0)
        return (character){
            classes->kind_of[(from[0] & 0x0F) << 12 | (from[1] & 0x3F) << 6 | (from[2] & 0x3F)],
            at + 3};
    const int32_t code =
        (from[0] & 0x07) << 18 | (from[1] & 0x3F) << 12 | (from[2] & 0x3F) << 6 | (from[3] & 0x3F);
    return (character){code < TABLE_END ? classes->kind_of[code] : OTHER, at + 4};
}

/* Where the run of characters of one kind ends that begins at `at`;
 * `at` itself if there is none. */
static inline size_t run_of(const word_classes *classes, const uint8_t *text, size_t size,
                            size_t at, kind wanted)
{
    while (at < size) {
        const character code = read_character(classes, text, at);
        if (code.kind != wanted)
            break;
        at = code.end;
    }
    return at;
}

/* Where a contraction ends ('s 't 're 've 'm 'll 'd, in either case) whose apostrophe is at `at`;
 * `at` itself if there is none. Without regard to case, s also matches U+017F, the long s; no other
 * letter here has a third form. */
static size_t contraction(const uint8_t *text, size_t size, size_t at)
{
    const size_t left = size - at;
    if (left < 2)
        return at;
    const uint8_t first = text[at + 1] | 0x20, second = left > 2 ? text[at + 2] | 0x20 : 0;
    if (first == 's' || first == 't' || first == 'm' || first == 'd')
        return at + 2;
    if ((second == 'e' && (first == 'r' || first == 'v')) || (second == 'l' && first == 'l'))
        return at + 3;
    return left > 2 && text[at + 1] == 0xC5 && text[at + 2] == 0xBF ? at + 3 : at;
}

/* Where a piece of white space ends that begins at `at`. A run of white space with a line end goes
 * up to its last line end. Without one, it is the whole run at the end of the text; elsewhere it is
 * the run without its last character, which belongs to what follows, or that one character alone.
 */
static size_t white(const word_classes *classes, const uint8_t *text, size_t size, size_t at)
{
    size_t end = at, last = at, newline = at;
    while (end < size) {
        const character code = read_character(classes, text, end);
        if (code.kind != SPACE && code.kind != NEWLINE)
            break;
        last = end;
        end = code.end;
        if (code.kind == NEWLINE)
            newline = end;
    }
    if (newline > at)
        return newline;
    return end == size || last == at ? end : last;
}

size_t words_next(const word_classes *classes, const uint8_t *text, size_t size, size_t at)
{
    const character code = read_character(classes, text, at);
    if (code.kind == LETTER)
        return run_of(classes, text, size, code.end, LETTER);
    if (code.kind == NUMBER)
        return code.end;
    if (code.kind == NEWLINE)
        return white(classes, text, size, at);
    if (text[at] == '\'') {
        const size_t end = contraction(text, size, at);
        if (end > at)
            return end;
    }
    const kind next = code.end < size ? read_character(classes, text, code.end).kind : NEWLINE;
    if (next == LETTER)
        return run_of(classes, text, size, code.end, LETTER);
    if (code.kind == SPACE && !(text[at] == ' ' && next == OTHER))
        return white(classes, text, size, at);
    return run_of(classes, text, size, run_of(classes, text, size, code.end, OTHER), NEWLINE);
}
