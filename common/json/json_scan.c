/* json_scan.c: see json_scan.h. */
#include "common/json/json_scan.h"

#include <string.h>

size_t json_scan_text(json_scan *s, const unsigned char *bytes, size_t size)
{
    size_t at = 0;
    while (s->in_text && at < size) {
        const unsigned char c = bytes[at++];
        if (s->escaped)
            s->escaped = false;
        else if (c == '\\')
            s->escaped = true;
        else if (c == '"')
            s->in_text = false;
    }
    return at;
}

static bool is_between(unsigned char c)
{
    return c == 0 || strchr(" \t\r\n,:[]{}", c) != NULL;
}

/* Reads one byte outside of texts. */
static void take_outside(json_scan *s, unsigned char c)
{
    s->in_text = c == '"';
    s->bare = s->in_text || is_between(c) ? 0 : s->bare + 1;
}

size_t json_scan_close(json_scan *s, int64_t *depth, const unsigned char *bytes, size_t size)
{
    size_t at = json_scan_text(s, bytes, size);
    while (*depth > 0 && at < size) {
        const unsigned char c = bytes[at++];
        *depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        take_outside(s, c);
        at += json_scan_text(s, bytes + at, size - at);
    }
    return at;
}

int64_t json_scan_all(json_scan *s, const unsigned char *bytes, size_t size)
{
    int64_t began = -1;
    for (size_t at = json_scan_text(s, bytes, size); at < size;) {
        take_outside(s, bytes[at]);
        if (s->in_text)
            began = (int64_t)at;
        at++;
        at += json_scan_text(s, bytes + at, size - at);
    }
    return s->in_text ? began : -1;
}
