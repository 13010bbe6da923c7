/* json_pairs.h: finds escapes that are half of a surrogate pair. Used by json_parse.c only.
 *
 * JSON escapes a character beyond U+FFFF as a pair of surrogates (\ud83d\ude00). Half a pair is not
 * a character, but yajl accepts it: it turns it into a question mark, or joins it with whatever
 * escape follows. So half pairs are looked for in the bytes, before yajl gets them. */
#ifndef TESSERA_COMMON_JSON_PAIRS_H
#define TESSERA_COMMON_JSON_PAIRS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct json_pairs {
    /* What the next byte belongs to: plain text, the letter after a backslash, or digits after \u.
     * A json_pairs of zeros is at the beginning of the input. */
    enum { PAIRS_TEXT, PAIRS_ESCAPE, PAIRS_DIGITS } at;
    int digits;     /* how many of the four are read */
    unsigned value; /* of these digits */
    bool has_high;  /* the escape just before was the first half of a pair */
    int64_t seen;   /* bytes of the input so far; the offsets below count from its beginning */
    int64_t escape; /* where the present escape begins */
    int64_t high;   /* where that first half begins */
} json_pairs;

/* Looks through the next bytes of the input. Returns the offset in the input at which the first
 * half pair begins, which may lie in bytes of an earlier call; -1 if there is none so far. */
int64_t json_pairs_find(json_pairs *state, const unsigned char *bytes, size_t size);

#endif
