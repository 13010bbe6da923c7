/* json_parser.h: inside of json.h: yajl's events as documents (json_parse.c), and what feeds it
 * from files and streams (json_stream.c). */
#ifndef TESSERA_COMMON_JSON_PARSER_H
#define TESSERA_COMMON_JSON_PARSER_H

#include <yajl/yajl_parse.h>

#include "common/json/json_pairs.h"
#include "common/json/json_tree.h"

enum { JSON_NUMBER_MAX = 512 }; /* bytes of a number, and one */

typedef struct json_parser {
    yajl_handle yajl;
    yajl_callbacks calls;
    const char *source;
    const unsigned char *chunk; /* being parsed */
    size_t chunk_size;
    int64_t base;      /* offset of the chunk in the input */
    int64_t line;      /* of the chunk's first byte, from 1 */
    int64_t line_base; /* offset of that line's first byte */
    json_pairs pairs;
    int64_t token_end; /* offset after the last token that was more than a comma or a colon */
    json_builder build;
    status st; /* of the callback that stopped the parse */

    /* streaming only */
    bool streaming;
    const char *wanted;  /* member whose items are handed out; NULL: the top level is the array */
    const char *without; /* member of the items that is not built; NULL: none */
    bool leave_next;     /* its key was read, its value comes */
    int64_t left_out;    /* open containers of that value */
    json_each each;
    void *user;
    int64_t skipped;  /* open containers outside the array */
    bool in_array;    /* between its brackets */
    bool wanted_next; /* its key was read, its value comes */
    bool found;
    json_place item;
    size_t counted;       /* bytes of the chunk whose lines are in counted_line */
    int64_t counted_line; /* of the chunk's byte `counted` */
} json_parser;

/* source and memory are borrowed. */
WARN_UNUSED status json_parser_open(json_parser *p, const char *source, arena *memory);
void json_parser_close(json_parser *p);

/* The next bytes of the input; they are borrowed until json_parser_advance, which counts them. */
WARN_UNUSED status json_parser_feed(json_parser *p, const unsigned char *bytes, size_t size);
void json_parser_advance(json_parser *p);
WARN_UNUSED status json_parser_finish(json_parser *p);

/* Streaming: forgets the item of the array in work, all of whose bytes the caller has counted: what
 * is fed next stands after it. */
WARN_UNUSED status json_parser_step_over(json_parser *p);

/* ST_BAD_INPUT with its line, column and byte. at: of the bytes that were fed last; below 0 on the
 * line that they began on. */
status json_parser_fail(const json_parser *p, int64_t at, const char *what);

#endif
