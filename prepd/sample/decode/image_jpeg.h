/* SPDX-License-Identifier: Apache-2.0 */
/* image_jpeg.h: decodes a plain JPEG directly with libjpeg-turbo. This is the only door to its own
 * interface.
 *
 * libvips decodes JPEG with the same library and the same settings, so the pixels are the same bit
 * for bit. What is saved is everything around it: a pipeline, its threads and locks, and one copy.
 * A JPEG is plain if it has one sequential scan, Huffman coding, 8 bits, YCbCr, at most one EXIF
 * and one XMP block, and a size within the limits, and if its lines decode without an error or a
 * warning. Every other JPEG is left to libvips. So it is libvips alone that refuses files, and in
 * its own words.
 *
 * What lies between the last line and the end of the file also tells of damage: a page of zeros may
 * decode as anything and leave data over. libvips does not look at it; image_jpeg_end does. */
#ifndef TESSERA_PREPD_SAMPLE_DECODE_IMAGE_JPEG_H
#define TESSERA_PREPD_SAMPLE_DECODE_IMAGE_JPEG_H

#include "prepd/sample/decode/image.h"

/* The upright size of a picture that is plain as far as its header shows. Takes a twentieth of the
 * time that libvips takes to open a file. Returns false if it is not plain. */
WARN_UNUSED bool image_jpeg_header(span bytes, const conf *limits, int32_t *out_width,
                                   int32_t *out_height);

/* Decodes to upright RGB, as image_decode_rows does. If the file is not plain, *out_done is false,
 * nothing is left in `memory`, and the caller uses libvips. The only error is ST_NO_MEMORY. */
WARN_UNUSED status image_jpeg_decode(span bytes, const conf *limits, const image_rows *rows,
                                     arena *memory, image *out, bool *out_done);

/* The same for a file on which libvips gives up, which it does after about a hundred warnings (as a
 * file that lost its restart markers gives). Warnings are ignored, as Pillow does, unless the file
 * ends before its last line. *out_done is false for an error or a file that is not plain. */
WARN_UNUSED status image_jpeg_decode_damaged(span bytes, const conf *limits, arena *memory,
                                             image *out, bool *out_done);

/* libjpeg's first warning about a sequential file, up to its very end, in `memory`; *out is NULL if
 * there is none. Decodes the whole file at an eighth of its size. */
WARN_UNUSED status image_jpeg_end(span bytes, arena *memory, const char **out);

#endif
