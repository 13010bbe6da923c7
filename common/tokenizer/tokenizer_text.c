/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_text.c: see tokenizer_text.h. Normalisation is by the three steps of Unicode 15,
 * section 3.11: decompose, reorder combining marks, compose. */
#include "common/tokenizer/tokenizer_text.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum {
    REPLACEMENT = 0xFFFD,
    DECOMPOSED_MAX =
        18, /* code points; far above the longest canonical decomposition, which is 4 */
};

void mapped_text_done(mapped_text *text)
{
    free(text->bytes);
    free(text->source);
    *text = (mapped_text){0};
}

void nfc_scratch_done(nfc_scratch *scratch)
{
    free(scratch->points);
    *scratch = (nfc_scratch){0};
}

static status mapped_reserve(mapped_text *text, size_t more)
{
    if (text->capacity - text->size >= more)
        return ST_OK;
    size_t capacity = text->capacity + text->capacity / 2 + more + 256;
    uint8_t *bytes = realloc(text->bytes, capacity);
    if (!bytes)
        return FAIL(ST_NO_MEMORY, "no memory for %zu bytes of text", capacity);
    text->bytes = bytes;
    int64_t *source = realloc(text->source, capacity * sizeof *source);
    if (!source)
        return FAIL(ST_NO_MEMORY, "no memory for the offsets of %zu bytes of text", capacity);
    text->source = source;
    text->capacity = capacity;
    return ST_OK;
}

size_t utf8_next(const uint8_t *bytes, size_t left, int32_t *out_code)
{
    uint8_t lead = bytes[0];
    *out_code = -1;
    if (lead < 0x80) {
        *out_code = lead;
        return 1;
    }
    /* The range of the second byte excludes overlong forms, surrogates and code points above
     * U+10FFFF. */
    size_t length = lead < 0xC2 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 1;
    uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (length == 1)
        return 1;
    int32_t code = lead & (0x7F >> length);
    for (size_t i = 1; i < length; i++) {
        if (i == left || bytes[i] < low || bytes[i] > high)
            return i;
        code = code << 6 | (bytes[i] & 0x3F);
        low = 0x80;
        high = 0xBF;
    }
    *out_code = code;
    return length;
}

size_t utf8_put(int32_t code, uint8_t out[4])
{
    return (size_t)utf8proc_encode_char(code, out);
}

static status mapped_put(mapped_text *text, int32_t code, int64_t source)
{
    TRY(mapped_reserve(text, 4));
    size_t count = utf8_put(code, text->bytes + text->size);
    for (size_t i = 0; i < count; i++)
        text->source[text->size++] = source;
    return ST_OK;
}

status utf8_repair(const uint8_t *text, size_t size, mapped_text *out)
{
    out->size = 0;
    for (size_t i = 0; i < size;) {
        int32_t code;
        size_t count = utf8_next(text + i, size - i, &code);
        TRY(mapped_put(out, code < 0 ? REPLACEMENT : code, (int64_t)i));
        i += count;
    }
    return ST_OK;
}

/* Whether a character is its own NFC, is not a combining mark, and never composes with the one
 * before. Only whole blocks of such characters are listed, so that ordinary text needs no table. A
 * test checks the ranges. */
static bool code_settled(int32_t code)
{
    return code < 0x300 || (code >= 0x400 && code <= 0x482) || (code >= 0x4E00 && code <= 0x9FFF) ||
           (code >= 0xAC00 && code <= 0xD7A3) || (code >= 0x1F300 && code <= 0x1FAFF);
}

bool nfc_settled(const uint8_t *text, size_t size)
{
    for (size_t i = 0; i < size;) {
        if (text[i] < 0x80) {
            i++;
            continue;
        }
        int32_t code;
        i += utf8_next(text + i, size - i, &code);
        if (!code_settled(code))
            return false;
    }
    return true;
}

/* Whether NFC leaves the character alone: the tokenizers library has the tables of Unicode 9. It
 * treats later characters as class 0, and never decomposes or composes them, whatever the version
 * of Unicode in utf8proc says. */
static bool is_later(int32_t code)
{
    return !code_set_has(code_nfc, code);
}

static status decompose(const uint8_t *text, size_t size, nfc_scratch *scratch)
{
    scratch->count = 0;
    for (size_t i = 0; i < size;) {
        if (scratch->capacity - scratch->count < DECOMPOSED_MAX) {
            size_t capacity = scratch->capacity + scratch->capacity / 2 + 256;
            nfc_point *grown = realloc(scratch->points, capacity * sizeof *grown);
            if (!grown)
                return FAIL(ST_NO_MEMORY, "no memory to normalise %zu bytes of text", size);
            scratch->points = grown;
            scratch->capacity = capacity;
        }
        int32_t code, part[DECOMPOSED_MAX];
        int boundary = 0;
        size_t length = utf8_next(text + i, size - i, &code);
        bool later = is_later(code);
        utf8proc_ssize_t got = 1;
        part[0] = code;
        if (!later)
            got = utf8proc_decompose_char(code, part, DECOMPOSED_MAX,
                                          UTF8PROC_STABLE | UTF8PROC_COMPOSE, &boundary);
        if (got < 0 || got > DECOMPOSED_MAX)
            return FAIL(ST_INTERNAL, "U+%04X: %s", (unsigned)code, utf8proc_errmsg(got));
        for (utf8proc_ssize_t k = 0; k < got; k++) {
            int32_t combining = later ? 0 : utf8proc_get_property(part[k])->combining_class;
            scratch->points[scratch->count] =
                (nfc_point){part[k], combining, (int64_t)i, (int64_t)scratch->count};
            scratch->count++;
        }
        i += length;
    }
    return ST_OK;
}

static int by_combining_class(const void *left, const void *right)
{
    const nfc_point *first = left, *second = right;
    if (first->combining != second->combining)
        return first->combining < second->combining ? -1 : 1;
    return first->order < second->order ? -1 : 1;
}

/* Sorts each run of combining marks by class. */
static void reorder_marks(nfc_scratch *scratch)
{
    for (size_t i = 0; i < scratch->count;) {
        size_t end = i;
        bool sorted = true;
        for (; end < scratch->count && scratch->points[end].combining; end++)
            sorted = sorted && (end == i || scratch->points[end - 1].combining <=
                                                scratch->points[end].combining);
        if (!sorted)
            qsort(scratch->points + i, end - i, sizeof *scratch->points, by_combining_class);
        i = end + (end == i);
    }
}

/* The primary composite of two code points, or 0 if there is none. U+11A7, the code point before
 * the first trailing consonant of Hangul, is excluded because utf8proc 2.8 mistakes it for one and
 * drops it after a syllable. */
static int32_t compose_pair(int32_t first, int32_t second)
{
    if (second < 0x300 || second == 0x11A7 || is_later(second))
        return 0;
    int32_t pair[3] = {first, second, 0};
    return utf8proc_normalize_utf32(pair, 2, UTF8PROC_STABLE | UTF8PROC_COMPOSE) == 1 ? pair[0] : 0;
}

/* Canonical composition (Unicode 15, section 3.11, D117): a character composes with the last
 * starter unless a character of the same or a higher class lies between them. The composite keeps
 * the starter's source. */
static void compose(nfc_scratch *scratch)
{
    size_t count = 0;
    nfc_point *starter = NULL;
    int32_t highest = -1;
    for (size_t i = 0; i < scratch->count; i++) {
        nfc_point point = scratch->points[i];
        int32_t joined =
            starter && point.combining > highest ? compose_pair(starter->code, point.code) : 0;
        if (joined) {
            starter->code = joined;
            continue;
        }
        scratch->points[count] = point;
        if (point.combining == 0) {
            starter = &scratch->points[count];
            highest = -1;
        } else if (point.combining > highest) {
            highest = point.combining;
        }
        count++;
    }
    scratch->count = count;
}

status nfc_normalise(const uint8_t *text, size_t size, nfc_scratch *scratch, mapped_text *out)
{
    TRY(decompose(text, size, scratch));
    reorder_marks(scratch);
    compose(scratch);
    out->size = 0;
    for (size_t i = 0; i < scratch->count; i++)
        TRY(mapped_put(out, scratch->points[i].code, scratch->points[i].source));
    return ST_OK;
}

bool unicode_is_space(int32_t code)
{
    return (code >= '\t' && code <= '\r') || (code >= 0x1C && code <= 0x1F) || code == 0x85 ||
           code == 0x2028 || code == 0x2029 || utf8proc_category(code) == UTF8PROC_CATEGORY_ZS;
}

bool unicode_is_digit(int32_t code)
{
    return utf8proc_category(code) == UTF8PROC_CATEGORY_ND;
}

static bool is_one_of(int32_t code, const int32_t *list, size_t count)
{
    size_t i = 0;
    while (i < count && list[i] != code)
        i++;
    return i < count;
}

/* Property Cased (Unicode 15, section 3.13), of characters that are not Case_Ignorable. */
static bool is_cased(int32_t code)
{
    const utf8proc_category_t category = utf8proc_category(code);
    return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
           category == UTF8PROC_CATEGORY_LT || code == 0xAA || code == 0xBA ||
           (code >= 0x2160 && code <= 0x217F) || (code >= 0x24B6 && code <= 0x24E9) ||
           (code >= 0x1F130 && code <= 0x1F149) || (code >= 0x1F150 && code <= 0x1F169) ||
           (code >= 0x1F170 && code <= 0x1F189);
}

/* Property Case_Ignorable: marks, and punctuation that occurs within words. */
static bool is_case_ignorable(int32_t code)
{
    static const int32_t within[] = {'\'',   '.',    ':',    0xB7,   0x387,  0x55F,
                                     0x5F4,  0x2018, 0x2019, 0x2024, 0x2027, 0xFE13,
                                     0xFE52, 0xFE55, 0xFF07, 0xFF0E, 0xFF1A};
    const utf8proc_category_t category = utf8proc_category(code);
    return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_ME ||
           category == UTF8PROC_CATEGORY_CF || category == UTF8PROC_CATEGORY_LM ||
           category == UTF8PROC_CATEGORY_SK ||
           is_one_of(code, within, sizeof within / sizeof *within);
}

/* Whether a sigma ends its word: a letter is before it and none is after it. */
static bool is_final(const int32_t *code, size_t count, size_t at)
{
    size_t before = at, after = at + 1;
    while (before > 0 && is_case_ignorable(code[before - 1]))
        before--;
    while (after < count && is_case_ignorable(code[after]))
        after++;
    return before > 0 && is_cased(code[before - 1]) && (after == count || !is_cased(code[after]));
}

size_t unicode_lower(const int32_t *code, size_t count, int32_t *out)
{
    enum { DOTTED_I = 0x130, DOT_ABOVE = 0x307, SIGMA = 0x3A3, SMALL = 0x3C3, FINAL = 0x3C2 };
    size_t written = 0;
    for (size_t i = 0; i < count; i++) {
        if (code[i] == SIGMA) {
            out[written++] = is_final(code, count, i) ? FINAL : SMALL;
        } else {
            out[written++] = code[i] == DOTTED_I ? 'i' : utf8proc_tolower(code[i]);
            if (code[i] == DOTTED_I)
                out[written++] = DOT_ABOVE;
        }
    }
    return written;
}
