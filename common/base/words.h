/* words.h: appends formatted text to a fixed buffer. */
#ifndef TESSERA_COMMON_BASE_WORDS_H
#define TESSERA_COMMON_BASE_WORDS_H

#include <stddef.h>

/* Writes formatted text after the first `used` bytes of out[size], and a NUL. What does not fit is
 * left out. Returns the number of bytes used then, which is always below size, so that calls can
 * follow each other:
 *   n = words_add(out, sizeof out, n, " %d", rank); */
size_t words_add(char *out, size_t size, size_t used, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
