/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_text.h: makes UTF-8 valid and normalises it to NFC, and keeps for each byte of the
 * result where in the input it came from.
 *
 * utf8proc gives the character tables (tokenizer_text.c is its only user). Canonical decomposition,
 * reordering and composition are done here, on code points that carry the offset of their source,
 * because utf8proc's own functions do not keep it. */
#ifndef TESSERA_COMMON_TOKENIZER_TEXT_H
#define TESSERA_COMMON_TOKENIZER_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

/* A text that was made from another one. On the heap, reused between calls. */
typedef struct mapped_text {
    uint8_t *bytes; /* [size] */
    int64_t
        *source; /* [size] offset in the other text of the character that this byte is part of */
    size_t size, capacity;
} mapped_text;

/* A code point on its way through NFC. */
typedef struct nfc_point {
    int32_t code;
    int32_t combining; /* canonical combining class */
    int64_t source;    /* offset of the source character */
    int64_t order;     /* index before sorting, which makes the sort stable */
} nfc_point;

typedef struct nfc_scratch {
    nfc_point *points;
    size_t count, capacity;
} nfc_scratch;

void mapped_text_done(mapped_text *text);
void nfc_scratch_done(nfc_scratch *scratch);

/* Reads the character at `bytes`, of which left > 0 are there. Returns its length and puts its code
 * point into *out_code. For bytes that are not UTF-8, the code is -1 and the length that of the
 * maximal ill-formed part (The Unicode Standard 15, section 3.9, as W3C and Python practise it). */
size_t utf8_next(const uint8_t *bytes, size_t left, int32_t *out_code);
/* Writes a code point up to U+10FFFF as UTF-8 and returns the number of bytes, at most 4. */
size_t utf8_put(int32_t code, uint8_t out[4]);
/* Copies a text, with U+FFFD in place of every maximal part that is not UTF-8. */
WARN_UNUSED status utf8_repair(const uint8_t *text, size_t size, mapped_text *out);

/* White space, decimal digits and lower case as Python 3 has them in str.split, in \d of its
 * regular expressions and in str.lower. */
bool unicode_is_space(int32_t code);
bool unicode_is_digit(int32_t code);
/* out [2 * count]: the lower case of code[count]. Returns how many characters it has. */
size_t unicode_lower(const int32_t *code, size_t count, int32_t *out);

/* Quick check of valid text: true if NFC certainly leaves it as it is, false if that is not
 * certain. */
bool nfc_settled(const uint8_t *text, size_t size);
/* Normalises valid text to NFC. */
WARN_UNUSED status nfc_normalise(const uint8_t *text, size_t size, nfc_scratch *scratch,
                                 mapped_text *out);

/* The character classes of the pinned release of the tokenizers library, as
 * sorted ranges of code points.
 *
 * That library has its own character tables, and ids depend on them: its classes are those of
 * Unicode 16, its normal form is that of Unicode 9. The system's libraries have the Unicode version
 * of the distribution. So tests/golden/make_classes.py asks the pinned release about every code
 * point, and writes tokenizer_classes.c. */

typedef struct code_range {
    int32_t first, last;
} code_range;

typedef struct code_set {
    const code_range *ranges; /* [count], ascending */
    size_t count;
} code_set;

extern const code_set code_letters; /* \p{L} */
extern const code_set code_numbers; /* \p{N} */
extern const code_set code_spaces;  /* \s */
/* The code points that NFC can decompose, compose or reorder. Every other one is left as it is,
 * even if a later version of Unicode treats it otherwise. */
extern const code_set code_nfc;

/* Whether the set has the code point, by bisection. Good for single questions; tokenizer_words.h
 * has a table for many. */
static inline bool code_set_has(code_set set, int32_t code)
{
    size_t low = 0, high = set.count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (code > set.ranges[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < set.count && code >= set.ranges[low].first;
}

#endif
