/* sniff.h: what a file is by its first bytes, never by its name. Pure; no image library. */
#ifndef TESSERA_PREPD_SNIFF_H
#define TESSERA_PREPD_SNIFF_H

#include "common/span.h"

typedef enum picture_format {
    PICTURE_JPEG,
    PICTURE_PNG,
    PICTURE_WEBP,
    PICTURE_OTHER, /* known or not, but not read here */
} picture_format;

/* out_name: "jpeg", "png", "webp"; for others a noun ("a GIF picture", "an HTML page") or NULL if
 * the bytes are of nothing known. Static text. */
picture_format sniff_format(span bytes, const char **out_name);

/* Facts of the container that libvips does not tell. */
bool sniff_png_grey_no_alpha(span bytes); /* colour type 0 */
/* Whether the chunks before the first of the pixels lie within the file: libpng asks for as much
 * memory as a chunk claims (eXIf: up to 2 GiB) before it reads it. */
bool sniff_png_reaches_pixels(span bytes);
/* Whether the chunks lead to IEND: libpng stops reading when it has its pixels, so a cut behind
 * them would pass. */
bool sniff_png_ends(span bytes);
/* The data of the first chunk of a type ("eXIf"), before or behind the pixels; empty if none. */
span sniff_png_chunk(span bytes, const char *type);

#endif
