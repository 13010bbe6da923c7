/* digits.h: prints large counts for people to read: 31070754032 as "31,070,754,032". */
#ifndef TESSERA_COMMON_BASE_DIGITS_H
#define TESSERA_COMMON_BASE_DIGITS_H

#include <inttypes.h>
#include <stdio.h>

enum { DIGITS_TEXT = 32 }; /* bytes that hold any int64_t with its commas and a NUL */

/* Writes the count into out and returns out, so that the call can be an argument of printf. */
static inline const char *digits_with_commas(int64_t total, char out[DIGITS_TEXT])
{
    char digits[24];
    int size = snprintf(digits, sizeof digits, "%" PRId64, total), at = 0, first = total < 0;
    for (int i = 0; i < size; i++) {
        if (i > first && (size - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = 0;
    return out;
}

#endif
