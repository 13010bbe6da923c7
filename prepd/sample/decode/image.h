/* SPDX-License-Identifier: Apache-2.0 */
/* image.h: decodes the bytes of a picture file to upright RGB. This is the only door to libvips,
 * and only workers load it.
 *
 * Reads the formats of picture_formats.def, told apart by their first bytes: JPEG (of MPO the first
 * picture), PNG and WebP (the first frame). Anything else is refused by the name of its format. The
 * pixels are those of Pillow 11.3's exif_transpose and convert("RGB"), bit for bit on every picture
 * of tests/golden: grey and palettes are expanded; alpha is dropped, or laid on white with
 * image.transparency 5.23; CMYK follows Pillow's formula; 16 bits keep their high byte, except that
 * 16-bit grey is clipped; ICC profiles are not applied. In one point it is stricter than Pillow: a
 * PNG without its end chunk counts as truncated even if all pixels are there. Sizes are checked on
 * the header, before anything is decoded.
 *
 * A damaged file may still decode, with part of it grey or shifted. Pillow does so too, and says
 * nothing. Here the first warning of the library comes with the picture (image.warning): any
 * warning of libjpeg, and those of libpng that concern the pixels ("IDAT: ..."); libwebp gives
 * none. With data.damaged refuse, such a warning is a failure.
 *
 * A failure is ST_BAD_INPUT with the name of the file and costs that file alone, or ST_NO_MEMORY.
 * Not thread-safe, because libvips keeps its error text per process. */
#ifndef TESSERA_PREPD_SAMPLE_DECODE_IMAGE_H
#define TESSERA_PREPD_SAMPLE_DECODE_IMAGE_H

#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/span.h"
#include "common/base/status.h"
#include "common/conf/conf.h"

typedef struct image_info {
    int32_t width, height; /* when upright */
    const char *format;    /* "jpeg", "png" ... (picture_formats.def) */
} image_info;

/* Everything in it lives in the arena that it was decoded into. */
typedef struct image {
    int32_t width, height;
    uint8_t *rgb;        /* [height, width, 3] */
    const char *warning; /* why the file is damaged, in the library's words; NULL if it is not */
} image;

/* Takes the rows of a picture while it is decoded, so that they are used while they are still in
 * the nearest cache and no whole picture is ever written. */
typedef struct image_rows {
    int32_t height, width; /* a picture of another size is decoded whole */
    int32_t band;          /* how many rows come at once; it divides the height */
    /* Takes rows `row` to row + band - 1, from the top: rgb [band, width, 3], valid during the
     * call. */
    void (*take)(void *user, const uint8_t *rgb, int32_t row);
    /* Takes the same rows as luma and two colour differences, [band] rows of `stride` bytes in each
     * plane, to be converted where they are used (patch.h); this saves one copy. It is called instead
     * of `take` for a JPEG that stores all three planes at full size. NULL: never. */
    void (*take_ycc)(void *user, const uint8_t *const planes[3], int64_t stride, int32_t row);
    void *user;
} image_rows;

/* Call this once per process. It sets libvips to one thread and no cache, and blocks every loader
 * but those of picture_formats.def. */
WARN_UNUSED status image_library_init(const char *program);
void image_library_done(void);

/* Reads the size from the header. `file` names the picture in errors; `limits` are image.* and
 * data.damaged. */
WARN_UNUSED status image_header(span bytes, const char *file, const conf *limits, image_info *out);
/* The same from the first bytes of a file. They are enough for a plain JPEG (image_jpeg.h); for any
 * other file it returns false. The caller checks the size of the whole file. */
WARN_UNUSED bool image_header_of_start(span start, const conf *limits, image_info *out);
/* Decodes a picture into `memory`. */
WARN_UNUSED status image_decode(span bytes, const char *file, const conf *limits, arena *memory,
                                image *out);
/* The same, but where the picture allows it, the rows go to `rows` and out->rgb is NULL. If
 * out->rgb is set, or on failure, the rows that were taken are to be ignored. `rows` may be NULL.
 */
WARN_UNUSED status image_decode_rows(span bytes, const char *file, const conf *limits,
                                     const image_rows *rows, arena *memory, image *out);
/* A hash of what decoding a built-in set of pictures gives. Two workers with the same fingerprint
 * give the same pixels. ST_UNAVAILABLE if the decoders of this machine disagree with each other. */
WARN_UNUSED status image_fingerprint(hash128 *out);

/* Writes a picture as a PNG file. The caller frees *out. */
WARN_UNUSED status image_write_png(const image *im, uint8_t **out, size_t *out_size);
/* Writes a picture as a JPEG file of this quality (1 to 100). The caller frees *out. */
WARN_UNUSED status image_write_jpeg(const image *im, int quality, uint8_t **out, size_t *out_size);
/* Resizes with libvips' own cubic filter, for image.resampler vips. */
WARN_UNUSED status image_resize_vips(const image *in, int32_t height, int32_t width, arena *memory,
                                     image *out);

#endif
