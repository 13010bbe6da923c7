/* tokenizer_classes.h: what each code point is to the pinned reference, as sorted ranges.
 *
 * The reference's library brings character tables of its own, and ids depend on them: its classes
 * are those of Unicode 16, its normal form that of Unicode 9. The system's libraries have whatever
 * Unicode the distribution has. So the tables are asked of the pinned release, code point by code
 * point, by tests/golden/make_classes.py, which writes tokenizer_classes.c. */
#ifndef TESSERA_COMMON_TOKENIZER_CLASSES_H
#define TESSERA_COMMON_TOKENIZER_CLASSES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct code_range {
    int32_t first, last;
} code_range;

typedef struct code_set {
    const code_range *ranges; /* [n], ascending */
    size_t n;
} code_set;

extern const code_set code_letters; /* \p{L} */
extern const code_set code_numbers; /* \p{N} */
extern const code_set code_spaces;  /* \s */
/* Where NFC may do something: what it takes apart, puts together or moves. Every other code point
 * is left alone, whatever a later Unicode says of it. */
extern const code_set code_nfc;

/* By bisection: for single questions. tokenizer_words.h has a table for many. */
static inline bool code_set_has(code_set set, int32_t code)
{
    size_t low = 0, high = set.n;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (code > set.ranges[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < set.n && code >= set.ranges[low].first;
}

#endif
