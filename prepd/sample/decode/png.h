/* SPDX-License-Identifier: Apache-2.0 */
/* png.h: facts about a PNG file that libvips does not tell, or tells too late. They are read from
 * its chunks (Portable Network Graphics, third edition, sections 5.3 and 11.3). No image library is
 * needed. */
#ifndef TESSERA_PREPD_SAMPLE_DECODE_PNG_H
#define TESSERA_PREPD_SAMPLE_DECODE_PNG_H

#include "common/base/span.h"
#include "common/base/status.h"

/* A chunk, as far as it lies in the file. */
typedef struct png_chunk {
    const uint8_t *type; /* four letters, not terminated */
    span data;           /* empty unless whole */
    bool whole;          /* the file has as many bytes as the chunk claims */
} png_chunk;

/* The data of the first chunk of a type ("eXIf"), before or after the pixels; empty if there is
 * none. */
span png_find(span bytes, const char *type);

bool png_is_grey(span bytes); /* colour type 0: grey without alpha */
/* Colour type 0 or 2: neither a palette nor a channel of alpha. */
bool png_has_colours_alone(span bytes);
/* The colour that tRNS makes transparent in a picture of these types. It is given as Pillow
 * compares it with pixels that were reduced to 8 bits: by its low bytes at any depth, except that 1
 * bit gives black or white. Returns false if there is none. */
bool png_key(span bytes, uint8_t out[3]);
/* Whether every chunk before the first of the pixels lies inside the file. libpng allocates what a
 * chunk claims (an eXIf up to 2 GiB) before it reads it, so this must be checked first. */
bool png_reaches_pixels(span bytes);
/* Whether the chunks lead to IEND. libpng stops when it has its pixels, so it would not notice a
 * file that is cut off after them. */
bool png_ends(span bytes);

/* Checks how long the texts are. libpng inflates every text together with the header, each up to
 * 8 MB, whether or not the text is used. ST_BAD_INPUT if one of them inflates to more than
 * PNG_TEXT_BYTES, or all together to more than PNG_TEXTS_BYTES; these bounds are Pillow's
 * MAX_TEXT_CHUNK and MAX_TEXT_MEMORY. The check itself needs little memory. */
enum { PNG_TEXT_BYTES = 1 << 20, PNG_TEXTS_BYTES = 64 << 20 };
WARN_UNUSED status png_check_texts(span bytes, const char *file);

#endif
