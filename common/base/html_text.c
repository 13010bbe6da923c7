/* html_text.c: see html_text.h. */
#include "common/base/html_text.h"

#include <string.h>

#include "common/base/visible.h"

static const char *html_name(char c)
{
    switch (c) {
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

void html_put_text(FILE *f, const char *text)
{
    for (size_t left = strlen(text), n; left > 0; text += n, left -= n) {
        const char *name = html_name(*text);
        char one[VISIBLE_CHAR] = "\n";
        n = *text == '\n' ? 1 : visible_char(text, left, one);
        fputs(name ? name : one, f);
    }
}
