/* visible.h: texts from outside (names of files and samples, a peer's words, keys of JSON) as they
 * are shown to people: they must not forge lines, steer a terminal or turn the order of letters.
 *
 * Control characters, DEL and bytes that are not UTF-8 become \x1b; U+0080 to U+009F, which
 * terminals take for escape sequences too, line separators and what turns the direction of writing
 * become \u202e. All else stays as it is, a backslash too. */
#ifndef TESSERA_COMMON_BASE_VISIBLE_H
#define TESSERA_COMMON_BASE_VISIBLE_H

#include <stddef.h>

enum { VISIBLE_CHAR = 8, VISIBLE_TEXT = 4096 };

/* The first character of text[size] (size > 0) as it is shown, terminated; returns how many bytes
 * of the text it is. */
size_t visible_char(const char *text, size_t size, char out[VISIBLE_CHAR]);

/* A whole text; what does not fit is left out, at a character's border. Returns the bytes written,
 * without the NUL. */
size_t visible_copy(char *to, size_t size, const char *text);

/* For an argument of printf, which it outlives:
 *   printf("%s\n", escape_text(name).text); */
typedef struct visible_text {
    char text[VISIBLE_TEXT];
} visible_text;
visible_text escape_text(const char *text);

#endif
