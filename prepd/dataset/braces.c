/* braces.c: expands the first braces of a name and calls itself with the rest, one level for each
 * pair of braces. */
#include "prepd/dataset/braces.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_BYTES = 4096, MAX_NAMES = 1000000, MAX_DEPTH = 8 /* pairs of braces in a name */ };

typedef struct expansion {
    const char *pattern;
    brace_each each;
    void *user;
    long count; /* names so far */
    int depth;
} expansion;

static status expand(expansion *pattern, const char *done, const char *rest);

/* Goes on with `done`, `piece` and then what `rest` expands to. */
static status with(expansion *pattern, const char *done, size_t done_bytes, const char *piece,
                   size_t piece_bytes, const char *rest)
{
    char name[NAME_MAX_BYTES];
    if (done_bytes + piece_bytes + strlen(rest) >= sizeof name)
        return FAIL_IN(ST_CONFIG, pattern->pattern, "it gives a name of more than %d bytes",
                       NAME_MAX_BYTES - 1);
    if (pattern->depth == MAX_DEPTH)
        return FAIL_IN(ST_CONFIG, pattern->pattern, "it has more than %d pairs of braces",
                       MAX_DEPTH);
    memcpy(name, done, done_bytes);
    memcpy(name + done_bytes, piece, piece_bytes);
    name[done_bytes + piece_bytes] = 0;
    pattern->depth++;
    status st = expand(pattern, name, rest);
    pattern->depth--;
    return st;
}

/* Expands a range FIRST..LAST; *out_is is false if `inner` is not one. */
static status expand_range(expansion *pattern, const char *done, const char *inner, size_t length,
                           const char *rest, bool *out_is)
{
    char text[64], *end;
    *out_is = false;
    if (length >= sizeof text)
        return ST_OK;
    memcpy(text, inner, length);
    text[length] = 0;
    const char *dots = strstr(text, "..");
    if (!dots || dots == text || text[0] < '0' || text[0] > '9' || dots[2] < '0' || dots[2] > '9')
        return ST_OK;
    const long long first = strtoll(text, &end, 10);
    if (end != dots)
        return ST_OK;
    const long long last = strtoll(dots + 2, &end, 10);
    if (*end)
        return ST_OK;
    *out_is = true;
    if (last < first || last - first >= MAX_NAMES)
        return FAIL_IN(ST_CONFIG, pattern->pattern,
                       "{%s}: expected a rising range of at most %d numbers", text, MAX_NAMES);
    const int width = text[0] == '0' ? (int)(dots - text) : 0;
    for (long long i = first; i <= last; i++) {
        char digits[96];
        const int size = snprintf(digits, sizeof digits, "%0*lld", width, i);
        TRY(with(pattern, done, strlen(done), digits, (size_t)size, rest));
    }
    return ST_OK;
}

/* `done` is the name so far, `rest` the part of the pattern that is still to be expanded. */
static status expand(expansion *pattern, const char *done, const char *rest)
{
    const char *open = strchr(rest, '{');
    if (!open) {
        char name[NAME_MAX_BYTES];
        if (++pattern->count > MAX_NAMES)
            return FAIL_IN(ST_CONFIG, pattern->pattern, "it stands for more than %d names",
                           MAX_NAMES);
        if (snprintf(name, sizeof name, "%s%s", done, rest) >= (int)sizeof name)
            return FAIL_IN(ST_CONFIG, pattern->pattern, "it gives a name of more than %d bytes",
                           NAME_MAX_BYTES - 1);
        return pattern->each(pattern->user, name);
    }
    const char *close = strchr(open, '}');
    if (!close || close == open + 1 || memchr(open + 1, '{', (size_t)(close - open - 1)))
        return FAIL_IN(ST_CONFIG, pattern->pattern, "its braces are empty, nested or not closed");
    char before[NAME_MAX_BYTES];
    if (snprintf(before, sizeof before, "%s%.*s", done, (int)(open - rest), rest) >=
        (int)sizeof before)
        return FAIL_IN(ST_CONFIG, pattern->pattern, "it gives a name of more than %d bytes",
                       NAME_MAX_BYTES - 1);
    bool is_range;
    TRY(expand_range(pattern, before, open + 1, (size_t)(close - open - 1), close + 1, &is_range));
    if (is_range)
        return ST_OK;
    for (const char *at = open + 1; at <= close;) {
        const size_t count = strcspn(at, ",}");
        TRY(with(pattern, before, strlen(before), at, count, close + 1));
        at += count + 1;
    }
    return ST_OK;
}

status braces_expand(const char *pattern, brace_each each, void *user)
{
    expansion walk = {.pattern = pattern, .each = each, .user = user};
    return expand(&walk, "", pattern);
}
