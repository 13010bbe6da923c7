/* json_scan.h: tells the texts and brackets of JSON apart without building anything. Used by
 * json_stream.c only.
 *
 * When a token continues over several pieces of input, yajl keeps all of it and reads it again from
 * its beginning with every piece. So json_stream.c has to know whether a piece ends inside of a
 * text, and has to skip a text or an item that is too long without passing it to yajl. */
#ifndef TESSERA_COMMON_JSON_SCAN_H
#define TESSERA_COMMON_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A state of zeros is between tokens. The input can be cut into pieces anywhere. */
typedef struct json_scan {
    bool in_text;
    bool escaped; /* in a text, and the byte before was a backslash */
    int64_t bare; /* bytes of the present number or word: those since the last bracket, comma,
                   * colon, white space or text */
} json_scan;

/* Reads to the end of an open text, its closing quote included, or all bytes. Returns how many it
 * read: 0 if no text is open. */
size_t json_scan_text(json_scan *state, const unsigned char *bytes, size_t size);

/* Reads until the *depth open brackets are closed and no text is open, or all bytes. Returns how
 * many it read: 0 if *depth is 0 and no text is open. */
size_t json_scan_close(json_scan *state, int64_t *depth, const unsigned char *bytes, size_t size);

/* Reads all bytes. If a text that begins among them is still open at their end, returns the index
 * at which it begins; -1 if no text is open, or it was open before. */
int64_t json_scan_all(json_scan *state, const unsigned char *bytes, size_t size);

#endif
