/* html_text.c: see html_text.h. */
#include "common/base/html_text.h"

#include <string.h>

#include "common/base/visible.h"

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
