/* words.h: words put behind each other in a buffer. */
#ifndef TESSERA_COMMON_BASE_WORDS_H
#define TESSERA_COMMON_BASE_WORDS_H

#include <stddef.h>

/* Writes behind the first `used` bytes of out[size], which it ends with a NUL; what does not fit is
 * left away. The bytes used then, always below size:
 *   n = words_add(out, sizeof out, n, " %d", rank); */
size_t words_add(char *out, size_t size, size_t used, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
