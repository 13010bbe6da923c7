/* tokenizer_text.c: see tokenizer_text.h. Normalisation is by the three steps of Unicode 15,
 * section 3.11: decompose, reorder combining marks, compose. */
#include "common/tokenizer/tokenizer_text.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "common/tokenizer/tokenizer_classes.h"

enum {
    REPLACEMENT = 0xFFFD,
    DECOMPOSED_MAX =
        18, /* code points; far above the longest canonical decomposition, which is 4 */
};

void mapped_text_done(mapped_text *m)
{
    free(m->bytes);
    free(m->source);
    *m = (mapped_text){0};
}

void nfc_scratch_done(nfc_scratch *s)
{
    free(s->points);
    *s = (nfc_scratch){0};
}

static status mapped_reserve(mapped_text *m, size_t more)
{
    if (m->capacity - m->size >= more)
        return ST_OK;
    size_t capacity = m->capacity + m->capacity / 2 + more + 256;
    uint8_t *bytes = realloc(m->bytes, capacity);
    if (!bytes)
        return FAIL(ST_NO_MEMORY, "no memory for %zu bytes of text", capacity);
    m->bytes = bytes;
    int64_t *source = realloc(m->source, capacity * sizeof *source);
    if (!source)
        return FAIL(ST_NO_MEMORY, "no memory for the offsets of %zu bytes of text", capacity);
    m->source = source;
    m->capacity = capacity;
    return ST_OK;
}

size_t utf8_next(const uint8_t *p, size_t left, int32_t *out_code)
{
    uint8_t lead = p[0];
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
        if (i == left || p[i] < low || p[i] > high)
            return i;
        code = code << 6 | (p[i] & 0x3F);
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

static status mapped_put(mapped_text *m, int32_t code, int64_t source)
{
    TRY(mapped_reserve(m, 4));
    size_t n = utf8_put(code, m->bytes + m->size);
    for (size_t i = 0; i < n; i++)
        m->source[m->size++] = source;
    return ST_OK;
}

status utf8_repair(const uint8_t *text, size_t size, mapped_text *out)
{
    out->size = 0;
    for (size_t i = 0; i < size;) {
        int32_t code;
        size_t n = utf8_next(text + i, size - i, &code);
        TRY(mapped_put(out, code < 0 ? REPLACEMENT : code, (int64_t)i));
        i += n;
    }
    return ST_OK;
}

/* Whether a character is its own NFC, is not a combining mark, and never composes with the one
 * before. Only whole blocks of such characters are listed, so that ordinary text needs no table. A
 * test checks the ranges. */
static bool code_settled(int32_t c)
{
    return c < 0x300 || (c >= 0x400 && c <= 0x482) || (c >= 0x4E00 && c <= 0x9FFF) ||
           (c >= 0xAC00 && c <= 0xD7A3) || (c >= 0x1F300 && c <= 0x1FAFF);
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

static status decompose(const uint8_t *text, size_t size, nfc_scratch *s)
{
    s->count = 0;
    for (size_t i = 0; i < size;) {
        if (s->capacity - s->count < DECOMPOSED_MAX) {
            size_t capacity = s->capacity + s->capacity / 2 + 256;
            nfc_point *grown = realloc(s->points, capacity * sizeof *grown);
            if (!grown)
                return FAIL(ST_NO_MEMORY, "no memory to normalise %zu bytes of text", size);
            s->points = grown;
            s->capacity = capacity;
        }
        int32_t code, part[DECOMPOSED_MAX];
        int boundary = 0;
        size_t length = utf8_next(text + i, size - i, &code);
        bool later = is_later(code);
        utf8proc_ssize_t n = 1;
        part[0] = code;
        if (!later)
            n = utf8proc_decompose_char(code, part, DECOMPOSED_MAX,
                                        UTF8PROC_STABLE | UTF8PROC_COMPOSE, &boundary);
        if (n < 0 || n > DECOMPOSED_MAX)
            return FAIL(ST_INTERNAL, "U+%04X: %s", (unsigned)code, utf8proc_errmsg(n));
        for (utf8proc_ssize_t k = 0; k < n; k++) {
            int32_t combining = later ? 0 : utf8proc_get_property(part[k])->combining_class;
            s->points[s->count] = (nfc_point){part[k], combining, (int64_t)i, (int64_t)s->count};
            s->count++;
        }
        i += length;
    }
    return ST_OK;
}

static int by_combining_class(const void *a, const void *b)
{
    const nfc_point *x = a, *y = b;
    if (x->combining != y->combining)
        return x->combining < y->combining ? -1 : 1;
    return x->order < y->order ? -1 : 1;
}

/* Sorts each run of combining marks by class. */
static void reorder_marks(nfc_scratch *s)
{
    for (size_t i = 0; i < s->count;) {
        size_t end = i;
        bool sorted = true;
        for (; end < s->count && s->points[end].combining; end++)
            sorted =
                sorted && (end == i || s->points[end - 1].combining <= s->points[end].combining);
        if (!sorted)
            qsort(s->points + i, end - i, sizeof *s->points, by_combining_class);
        i = end + (end == i);
    }
}

/* The primary composite of two code points, or 0 if there is none. U+11A7, the code point before
 * the first trailing consonant of Hangul, is excluded because utf8proc 2.8 mistakes it for one and
 * drops it after a syllable. */
static int32_t compose_pair(int32_t a, int32_t b)
{
    if (b < 0x300 || b == 0x11A7 || is_later(b))
        return 0;
    int32_t pair[3] = {a, b, 0};
    return utf8proc_normalize_utf32(pair, 2, UTF8PROC_STABLE | UTF8PROC_COMPOSE) == 1 ? pair[0] : 0;
}

/* Canonical composition (Unicode 15, section 3.11, D117): a character composes with the last
 * starter unless a character of the same or a higher class lies between them. The composite keeps
 * the starter's source. */
static void compose(nfc_scratch *s)
{
    size_t n = 0;
    nfc_point *starter = NULL;
    int32_t highest = -1;
    for (size_t i = 0; i < s->count; i++) {
        nfc_point p = s->points[i];
        int32_t joined = starter && p.combining > highest ? compose_pair(starter->code, p.code) : 0;
        if (joined) {
            starter->code = joined;
            continue;
        }
        s->points[n] = p;
        if (p.combining == 0) {
            starter = &s->points[n];
            highest = -1;
        } else if (p.combining > highest) {
            highest = p.combining;
        }
        n++;
    }
    s->count = n;
}

status nfc_normalise(const uint8_t *text, size_t size, nfc_scratch *s, mapped_text *out)
{
    TRY(decompose(text, size, s));
    reorder_marks(s);
    compose(s);
    out->size = 0;
    for (size_t i = 0; i < s->count; i++)
        TRY(mapped_put(out, s->points[i].code, s->points[i].source));
    return ST_OK;
}
