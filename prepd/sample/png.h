/* png.h: facts of a PNG's container that libvips does not tell, or tells too late (PNG, third
 * edition, sections 5.3 and 11.3). Pure; no image library. */
#ifndef TESSERA_PREPD_SAMPLE_PNG_H
#define TESSERA_PREPD_SAMPLE_PNG_H

#include "common/base/span.h"
#include "common/base/status.h"

/* A chunk, as far as it lies in the file. */
typedef struct png_chunk {
    const uint8_t *type; /* four letters */
    span data;           /* empty unless whole */
    bool whole;          /* the file has as much as it claims */
} png_chunk;

/* The next chunk from *at on (0: the first), which moves on behind it; false at the end of the
 * file. Behind a chunk that is not whole there is none. */
bool png_next(span bytes, uint64_t *at, png_chunk *out);
/* The data of the first chunk of a type ("eXIf"), before or behind the pixels; empty if none. */
span png_find(span bytes, const char *type);

bool png_is_grey(span bytes);           /* colour type 0: no alpha */
bool png_has_colours_alone(span bytes); /* types 0 and 2: no palette, no band of alpha */
/* Of a picture without palette and without a band of alpha: the colour that is transparent, as
 * Pillow looks for it among the pixels made 8 bits: by its low bytes, whatever the depth, and of 1
 * bit as black or white. False: there is none. */
bool png_key(span bytes, uint8_t out[3]);
/* Whether the chunks before the first of the pixels lie within the file: libpng asks for as much
 * memory as a chunk claims (eXIf: up to 2 GiB) before it reads it. */
bool png_reaches_pixels(span bytes);
/* Whether the chunks lead to IEND: libpng stops reading when it has its pixels, so a cut behind
 * them would pass. */
bool png_ends(span bytes);

/* libpng inflates every text with the header, each to 8 MB, whoever wants it. ST_BAD_INPUT where
 * one is longer inflated than PNG_TEXT_BYTES, or all of them together than PNG_TEXTS_BYTES: the
 * reference's bounds (Pillow, MAX_TEXT_CHUNK and MAX_TEXT_MEMORY). Takes no memory of that size. */
enum { PNG_TEXT_BYTES = 1 << 20, PNG_TEXTS_BYTES = 64 << 20 };
WARN_UNUSED status png_check_texts(span bytes, const char *file);

#endif
