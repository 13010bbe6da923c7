/* SPDX-License-Identifier: Apache-2.0 */
/* utf8.h: whether bytes are valid UTF-8. */
#ifndef TESSERA_COMMON_BASE_UTF8_H
#define TESSERA_COMMON_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* The length in bytes, 1 to 4, of the character at `bytes`, of which size > 0 bytes are there; 0 if
 * they are not well-formed: overlong forms, surrogates and truncated characters are refused (The
 * Unicode Standard, table 3-7). */
static inline size_t utf8_length(const unsigned char *bytes, size_t size)
{
    unsigned char low = 0x80, high = 0xBF;
    size_t length;
    if (bytes[0] < 0x80)
        return 1;
    if (bytes[0] >= 0xC2 && bytes[0] <= 0xDF)
        length = 2;
    else if (bytes[0] >= 0xE0 && bytes[0] <= 0xEF)
        length = 3;
    else if (bytes[0] >= 0xF0 && bytes[0] <= 0xF4)
        length = 4;
    else
        return 0;
    if (bytes[0] == 0xE0)
        low = 0xA0;
    if (bytes[0] == 0xED)
        high = 0x9F;
    if (bytes[0] == 0xF0)
        low = 0x90;
    if (bytes[0] == 0xF4)
        high = 0x8F;
    if (size < length || bytes[1] < low || bytes[1] > high)
        return 0;
    for (size_t i = 2; i < length; i++)
        if (bytes[i] < 0x80 || bytes[i] > 0xBF)
            return 0;
    return length;
}

static inline bool utf8_valid(const void *text, size_t size)
{
    const unsigned char *bytes = (const unsigned char *)text;
    for (size_t i = 0; i < size;) {
        size_t count = utf8_length(bytes + i, size - i);
        if (count == 0)
            return false;
        i += count;
    }
    return true;
}

#endif
