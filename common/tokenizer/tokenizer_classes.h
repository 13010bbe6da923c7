/* tokenizer_classes.h: the character classes of the pinned release of the tokenizers library, as
 * sorted ranges of code points.
 *
 * That library has character tables of its own, and ids depend on them: its classes are those of
 * Unicode 16, its normal form is that of Unicode 9. The system's libraries have the Unicode version
 * of the distribution. So tests/golden/make_classes.py asks the pinned release about every code
 * point, and writes tokenizer_classes.c. */
#ifndef TESSERA_COMMON_TOKENIZER_CLASSES_H
#define TESSERA_COMMON_TOKENIZER_CLASSES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
