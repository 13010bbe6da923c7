/* json_scan.h: inside of json.h: texts and brackets of JSON, told apart without building anything.
 *
 * yajl reads a token that straddles two pieces of input again from the token's beginning with
 * every further piece, and keeps all of it. What feeds it must therefore know whether a piece
 * ends inside a text, and must step over a text or an item that is too long without yajl. */
#ifndef TESSERA_COMMON_JSON_SCAN_H
#define TESSERA_COMMON_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zeros: between tokens. The input may be cut anywhere. */
typedef struct json_scan {
    bool in_text;
    bool escaped; /* the byte before was a backslash, in a text */
    int64_t bare; /* bytes since the last bracket, comma, blank or text: of a number or a word */
} json_scan;

/* Takes bytes until a text that is open ends, its closing quote included, or all of them; returns
 * how many. */
size_t json_scan_text(json_scan *s, const unsigned char *bytes, size_t size);

/* Takes bytes until the brackets that are open, *depth of them, are closed and no text is open, or
 * all of them; returns how many. With *depth 0 and no text open it takes nothing. */
size_t json_scan_close(json_scan *s, int64_t *depth, const unsigned char *bytes, size_t size);

/* Takes all bytes. Returns where the last text among them begins that is still open at the end; -1
 * if none is open, or it was open before. */
int64_t json_scan_all(json_scan *s, const unsigned char *bytes, size_t size);

#endif
