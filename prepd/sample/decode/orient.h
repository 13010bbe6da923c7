/* SPDX-License-Identifier: Apache-2.0 */
/* orient.h: which way up a picture is, and how to turn it. No image library is needed.
 *
 * An orientation is the number that EXIF gives: 1 upright, 2 mirrored, 3 turned by 180 degrees, 4
 * flipped, 5 transposed, 6 to be turned a quarter clockwise, 7 transposed along the other diagonal,
 * 8 to be turned a quarter counter-clockwise. The rules are those of exif_transpose in Pillow
 * (PIL/ImageOps.py), including what it makes of broken blocks. */
#ifndef TESSERA_PREPD_SAMPLE_DECODE_ORIENT_H
#define TESSERA_PREPD_SAMPLE_DECODE_ORIENT_H

#include "common/base/span.h"

/* Tag 0x0112 of the first directory of an EXIF block, which may begin with "Exif\0\0". Returns 1 to
 * 8, and 1 also for any other value. Returns 0 if the block is damaged or has no such tag; only
 * then is an XMP packet asked. */
int orient_from_exif(span exif);
/* The same from ImageMagick's PNG text "Raw profile type exif": three lines, then EXIF in
 * hexadecimal. The text is terminated. */
int orient_from_raw_profile(const char *text);
/* The first tiff:Orientation="N" or tiff:Orientation>N of an XMP packet; 1 for the digits 0 and 9;
 * 0 if there is none. */
int orient_from_xmp(span xmp);

static inline bool orient_swaps_sides(int orientation)
{
    return orientation >= 5 && orientation <= 8;
}

/* Turns `in` [height, width, 3] upright. `out` is [width, height, 3] if the sides swap, else
 * [height, width, 3]; the two must not overlap. An orientation that is not 1 to 8 is copied as is.
 */
void orient_apply(int orientation, const uint8_t *in, int32_t height, int32_t width, uint8_t *out);

#endif
