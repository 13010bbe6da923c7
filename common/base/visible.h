/* visible.h: makes texts from outside (names of files and samples, words of a peer, JSON keys) safe
 * to show to people. Such a text must not forge a line of a log, send commands to the terminal or
 * reverse the order in which letters are shown.
 *
 * Control characters, DEL and bytes that are not UTF-8 are shown as \x1b (their value in hex).
 * U+0080 to U+009F, which some terminals take for escape sequences, line separators, and characters
 * that change the direction of writing are shown as \u202e. Everything else stays as it is, also a
 * backslash. */
#ifndef TESSERA_COMMON_BASE_VISIBLE_H
#define TESSERA_COMMON_BASE_VISIBLE_H

#include <stddef.h>

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

#endif
