/* json_pairs.h: inside of json_parse.c: a character beyond U+FFFF is escaped as a pair of
 * surrogates (\ud83d\ude00), and half a pair is no character. yajl makes a question mark of it, or
 * another character of it and whatever escape follows, so they are looked for in the bytes. */
#ifndef TESSERA_COMMON_JSON_PAIRS_H
#define TESSERA_COMMON_JSON_PAIRS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct json_pairs {
    enum { PAIRS_TEXT, PAIRS_ESCAPE, PAIRS_DIGITS } at; /* zeros = the beginning of the input */
    int digits;
    unsigned value; /* of the digits so far */
    bool has_high;  /* the first half was the escape before */
    int64_t seen;   /* bytes of the input; places below count from its beginning */
    int64_t escape; /* where the escape in work begins */
    int64_t high;   /* and that first half */
} json_pairs;

/* Looks through the next bytes of the input. Where in it the first escape begins that is half a
 * pair, -1 if there is none so far; it may lie in bytes given before. */
int64_t json_pairs_find(json_pairs *p, const unsigned char *bytes, size_t size);

#endif
