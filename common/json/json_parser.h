/* SPDX-License-Identifier: Apache-2.0 */
/* json_parser.h: the parser that json_parse.c and json_stream.c share. json_parse.c implements it
 * on yajl's events, and json_stream.c feeds it from files and streams. */
#ifndef TESSERA_COMMON_JSON_PARSER_H
#define TESSERA_COMMON_JSON_PARSER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <yajl/yajl_parse.h>

#include "common/json/json_tree.h"

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

/* The parser that json_parse.c and json_stream.c share. json_parse.c implements it
 * on yajl's events, and json_stream.c feeds it from files and streams. */

enum { JSON_NUMBER_MAX = 512 }; /* bytes of the longest number, with its NUL */

typedef struct json_parser {
    yajl_handle yajl;
    yajl_callbacks calls;
    const char *source;
    const unsigned char *chunk; /* the bytes that are being parsed; borrowed */
    size_t chunk_size;
    int64_t base;      /* offset of the chunk in the input */
    int64_t line;      /* of the chunk's first byte, from 1 */
    int64_t line_base; /* offset at which that line begins */
    json_pairs pairs;
    int64_t token_end; /* offset after the last token other than a comma or a colon */
    json_builder build;
    status st; /* why a callback stopped the parse */

    /* The rest is for streaming only. */
    bool streaming;
    const char *wanted; /* the member whose items are passed on; NULL: the top level is the array */
    const char *without; /* the member of the items that is not built; NULL: none */
    bool leave_next;     /* the key `without` was read and its value comes next */
    int64_t left_out;    /* open containers inside of that value */
    json_each each;
    void *user;
    int64_t skipped;  /* open containers outside of the array */
    bool in_array;    /* between the brackets of the array */
    bool wanted_next; /* the key `wanted` was read and its value comes next */
    bool found;       /* the array was entered */
    json_place item;
    size_t counted;       /* bytes of the chunk whose line ends are counted */
    int64_t counted_line; /* the line of the chunk's byte `counted` */
} json_parser;

/* Begins a parse; values are built in `memory`. source and memory are borrowed until
 * json_parser_close, which is needed after a failure too. */
WARN_UNUSED status json_parser_open(json_parser *parser, const char *source, arena *memory);
void json_parser_close(json_parser *parser);

/* Parses the next bytes of the input. They are borrowed until json_parser_advance, which must be
 * called before the next feed and moves the place on by their number. */
WARN_UNUSED status json_parser_feed(json_parser *parser, const unsigned char *bytes, size_t size);
void json_parser_advance(json_parser *parser);
/* Tells the parser that the input has ended. ST_BAD_INPUT if a value is not complete. */
WARN_UNUSED status json_parser_finish(json_parser *parser);

/* In streaming: gives up the item of the array that is being built. The caller has passed over all
 * of its bytes, and what is fed next comes after it. */
WARN_UNUSED status json_parser_step_over(json_parser *parser);

/* Fails with ST_BAD_INPUT, naming line, column and byte. at: index into the bytes that were fed
 * last; a negative one counts as on the line on which they begin. */
status json_parser_fail(const json_parser *parser, int64_t at, const char *what);

#endif
