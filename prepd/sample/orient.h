/* orient.h: which way up a picture is, and turning it. Pure; no image library.
 *
 * Orientation is the EXIF number: 1 upright, 2 mirrored, 3 half turn, 4 flipped, 5 transposed,
 * 6 quarter turn clockwise to be upright, 7 transposed across the other diagonal, 8 quarter turn
 * counter-clockwise. The rules are those of Pillow's exif_transpose. */
#ifndef TESSERA_PREPD_SAMPLE_ORIENT_H
#define TESSERA_PREPD_SAMPLE_ORIENT_H

#include "common/base/span.h"

/* Tag 0x0112 of the first directory of an EXIF block (with or without "Exif\0\0" before it):
 * 1..8, and 1 too where its value is none of these; 0 if the block is damaged or has no such tag
 * (only then an XMP packet is asked). */
int orient_from_exif(span exif);
/* The same of ImageMagick's PNG text "Raw profile type exif": three lines, then EXIF in
 * hexadecimal. Terminated text. */
int orient_from_raw_profile(const char *text);
/* First tiff:Orientation="N" or tiff:Orientation>N of an XMP packet (0 and 9: 1); 0 if none. */
int orient_from_xmp(span xmp);

static inline bool orient_swaps_sides(int orientation)
{
    return orientation >= 5 && orientation <= 8;
}

/* in [height, width, 3] u8 -> out, upright: [width, height, 3] where sides swap. Numbers outside
 * 1..8 copy. */
void orient_apply(int orientation, const uint8_t *in, int32_t height, int32_t width, uint8_t *out);

#endif
