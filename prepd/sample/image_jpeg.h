/* image_jpeg.h: a plain JPEG straight through libjpeg-turbo, the only door to its own interface.
 *
 * libvips decodes JPEG with the same library and the same settings, so the pixels are the same bit
 * for bit; what is saved is everything around it (a pipeline, its threads and locks, one copy).
 * Plain: one scan, sequential, Huffman-coded, 8 bits, YCbCr, within the limits, at most one EXIF
 * and one XMP block, its lines decoded without an error and without a single warning. All else is
 * left to libvips with what it says about it, so which files are refused, and in which words, is
 * libvips' alone.
 *
 * What lies between the last line and the end of the file tells of damage too (a page of zeros may
 * decode as anything, and leave data over): libvips does not look at it, image_jpeg_end does. */
#ifndef TESSERA_PREPD_SAMPLE_IMAGE_JPEG_H
#define TESSERA_PREPD_SAMPLE_IMAGE_JPEG_H

#include "prepd/sample/image.h"

/* The size, upright, of a picture whose header is plain: all of the above but what only its pixels
 * show. A twentieth of what libvips takes to open one. False: not plain. */
WARN_UNUSED bool image_jpeg_header(span bytes, const conf *limits, int32_t *out_width,
                                   int32_t *out_height);

/* Upright RGB as image_decode_rows gives it. *out_done false: not plain; nothing is kept, the
 * caller takes libvips. Fails with ST_NO_MEMORY alone. */
WARN_UNUSED status image_jpeg_decode(span bytes, const conf *limits, const image_rows *rows,
                                     arena *a, image *out, bool *out_done);

/* For a file that libvips gives up (after about a hundred warnings, as of one that loses its
 * restart markers): as image_jpeg_decode, but warnings are passed over, as in Pillow, unless the
 * file ends within its lines. *out_done false: an error, or not plain. */
WARN_UNUSED status image_jpeg_decode_damaged(span bytes, const conf *limits, arena *a, image *out,
                                             bool *out_done);

/* libjpeg's first warning about a sequential file, its end included, in the arena; *out NULL: there
 * is none. It decodes all of the file at an eighth of its size. */
WARN_UNUSED status image_jpeg_end(span bytes, arena *a, const char **out);

#endif
