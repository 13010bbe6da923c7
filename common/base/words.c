/* SPDX-License-Identifier: Apache-2.0 */
/* words.c: see words.h. */
#include "common/base/words.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "common/base/utf8.h"

size_t words_add(char *out, size_t size, size_t used, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    const int length = vsnprintf(out + used, size - used, format, values);
    va_end(values);
    if (length < 0) {
        out[used] = 0;
        return used;
    }
    return (size_t)length < size - used ? used + (size_t)length : size - 1;
}

/* Code points that change how a terminal shows what follows. */
static bool is_steering(unsigned point)
{
    return (point >= 0x80 && point <= 0x9F) || (point >= 0x2028 && point <= 0x202E) ||
           (point >= 0x2066 && point <= 0x2069) || point == 0x200E || point == 0x200F;
}

/* The code point of a valid character of two or three bytes; 0 for other lengths, which are all
 * shown as they are. */
static unsigned point_of(const unsigned char *at, size_t length)
{
    if (length == 2)
        return (at[0] & 31u) << 6 | (at[1] & 63u);
    return length == 3 ? (at[0] & 15u) << 12 | (at[1] & 63u) << 6 | (at[2] & 63u) : 0;
}

size_t visible_char(const char *text, size_t size, char out[VISIBLE_CHAR])
{
    const unsigned char *at = (const unsigned char *)text;
    const size_t length = utf8_length(at, size);
    if (length == 0 || *at < 0x20 || *at == 0x7F) {
        snprintf(out, VISIBLE_CHAR, "\\x%02x", *at);
        return 1;
    }
    const unsigned point = point_of(at, length);
    if (is_steering(point)) {
        snprintf(out, VISIBLE_CHAR, "\\u%04x", point & 0xFFFF);
        return length;
    }
    memcpy(out, at, length);
    out[length] = 0;
    return length;
}

size_t visible_copy(char *to, size_t size, const char *text)
{
    size_t count = 0;
    for (size_t left = strlen(text); left > 0;) {
        char one[VISIBLE_CHAR];
        const size_t taken = visible_char(text, left, one), more = strlen(one);
        if (count + more >= size)
            break;
        memcpy(to + count, one, more);
        count += more;
        text += taken;
        left -= taken;
    }
    to[count] = 0;
    return count;
}

visible_text escape_text(const char *text)
{
    visible_text out;
    visible_copy(out.text, sizeof out.text, text);
    return out;
}

static const char *html_name(char letter)
{
    switch (letter) {
    case '<':
        return "&lt;";
    case '>':
        return "&gt;";
    case '&':
        return "&amp;";
    case '"':
        return "&quot;";
    case '\'':
        return "&#39;";
    }
    return NULL;
}

void html_put_text(FILE *to, const char *text)
{
    for (size_t left = strlen(text), i; left > 0; text += i, left -= i) {
        const char *name = html_name(*text);
        char one[VISIBLE_CHAR] = "\n";
        i = *text == '\n' ? 1 : visible_char(text, left, one);
        fputs(name ? name : one, to);
    }
}
