/* SPDX-License-Identifier: Apache-2.0 */
/* words.h: texts for people: appended to a buffer, counts with commas, and texts from outside in
 * logs, terminals and HTML. */
#ifndef TESSERA_COMMON_BASE_WORDS_H
#define TESSERA_COMMON_BASE_WORDS_H

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>

/* Writes formatted text after the first `used` bytes of out[size], and a NUL. What does not fit is
 * left out. Returns the number of bytes used then, which is always below size, so that calls can
 * follow each other:
 *   n = words_add(out, sizeof out, n, " %d", rank); */
size_t words_add(char *out, size_t size, size_t used, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Prints large counts for people to read: 31070754032 as "31,070,754,032". */

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

/* Makes texts from outside (names of files and samples, words of a peer, JSON keys) safe
 * to show to people. Such a text must not forge a line of a log, send commands to the terminal or
 * reverse the order in which letters are shown.
 *
 * Control characters, DEL and bytes that are not UTF-8 are shown as \x1b (their value in hex).
 * U+0080 to U+009F, which some terminals take for escape sequences, line separators, and characters
 * that change the direction of writing are shown as \u202e. Everything else stays as it is, also a
 * backslash. */

enum { VISIBLE_CHAR = 8, VISIBLE_TEXT = 4096 };

/* Writes the first character of text[size], size > 0, as it is to be shown, with a NUL. Returns how
 * many bytes of the text it takes up. */
size_t visible_char(const char *text, size_t size, char out[VISIBLE_CHAR]);

/* Writes a whole text as it is to be shown. What does not fit into to[size] is left out, never half
 * a character. Returns the bytes written, without the NUL. */
size_t visible_copy(char *to, size_t size, const char *text);

/* The same as a value, whose text lives long enough to be an argument of printf:
 *   printf("%s\n", escape_text(name).text); */
typedef struct visible_text {
    char text[VISIBLE_TEXT];
} visible_text;
visible_text escape_text(const char *text);

/* Writes texts from outside (questions, answers, file names) into a page of HTML. */

/* Writes the text so that a browser shows it as it is. Characters that mean something in HTML
 * become entities, control characters are shown as in visible.h, and line ends stay. */
void html_put_text(FILE *to, const char *text);

#endif
