/* image.h: file bytes -> upright RGB, through libvips; the only door to it. Loaded by workers only.
 *
 * JPEG (first picture of MPO), PNG and WebP (first frame), told by their first bytes; anything else
 * is refused by the name of its format. Pixels are those of Pillow 11.3's
 * exif_transpose + convert("RGB"), bit for bit on every picture of tests/golden: grey and palette
 * replicated, alpha dropped (image.transparency 5.23: laid on white), CMYK by Pillow's formula, 16
 * bit to its high byte but 16-bit grey clipped; ICC profiles not applied. Stricter than Pillow in
 * one point: a PNG without its end chunk is truncated even if all pixels are there. Sizes are
 * checked on the header, before anything is decoded.
 *
 * A damaged file may decode all the same, part of it grey or shifted, as in Pillow, which says
 * nothing. The library's first warning comes with the picture (image.warning): every warning of
 * libjpeg, those of libpng that concern the pixels ("IDAT: ..."); libwebp has none. data.damaged
 * refuse makes it a failure.
 *
 * Failures are ST_BAD_INPUT with the file's name (ST_NO_MEMORY from the arena), and cost that file
 * alone. Not thread-safe: libvips keeps its error text per process. */
#ifndef TESSERA_PREPD_SAMPLE_IMAGE_H
#define TESSERA_PREPD_SAMPLE_IMAGE_H

#include <stdint.h>

#include "common/base/arena.h"
#include "common/conf/conf.h"
#include "common/base/span.h"
#include "common/base/status.h"

typedef struct image_info {
    int32_t width, height; /* oriented */
    const char *format;    /* "jpeg", "png", "webp" */
} image_info;

typedef struct image {
    int32_t width, height;
    uint8_t *rgb; /* [height, width, 3] in the arena */
    const char
        *warning; /* NULL, or that the file is damaged, in the library's words; in the arena */
} image;

/* Where rows of a picture go while it is decoded, so that whoever wants them finds them in the
 * nearest cache and no whole picture is written. */
typedef struct image_rows {
    int32_t height, width; /* a picture of another size is decoded whole */
    int32_t band;          /* rows at a time; divides height */
    /* rgb [band, width, 3], good during the call: rows y to y + band - 1, from the top. */
    void (*take)(void *user, const uint8_t *rgb, int32_t y);
    /* NULL: never. A picture that is kept as luma and two differences of its full size may come so,
     * [band] rows of stride bytes each, to be converted by who cuts it (ycc.h): bytes are then
     * spread to one place only, and read back from none. */
    void (*take_ycc)(void *user, const uint8_t *const planes[3], int64_t stride, int32_t y);
    void *user;
} image_rows;

/* Once per process: one thread, no cache, only the three loaders unblocked. */
WARN_UNUSED status image_library_init(const char *program);
void image_library_done(void);

/* Size from the header; file names the image in errors. */
WARN_UNUSED status image_header(span bytes, const char *file, const conf *limits, image_info *out);
/* The same from a file's first bytes, where they are enough: a plain JPEG's (image_jpeg.h). False:
 * the file is needed. Its size is checked by who read it. */
WARN_UNUSED bool image_header_of_start(span start, const conf *limits, image_info *out);
WARN_UNUSED status image_decode(span bytes, const char *file, const conf *limits, arena *a,
                                image *out);
/* The same; where the picture allows it, its rows go to `rows` (NULL: never) and out->rgb is NULL.
 * With rgb, or on failure, what was taken counts for nothing. */
WARN_UNUSED status image_decode_rows(span bytes, const char *file, const conf *limits,
                                     const image_rows *rows, arena *a, image *out);
/* Hash of decoding a built-in set of images: two workers with the same fingerprint give the same
 * pixels. */
WARN_UNUSED status image_fingerprint(hash128 *out);

/* height x width x 3 u8 RGB -> a JPEG file's bytes; heap. Used by synth's worker side. */
WARN_UNUSED status image_write_jpeg(const image *im, int quality, uint8_t **out, size_t *out_size);
/* libvips' own resize for image.resampler vips. */
WARN_UNUSED status image_resize_vips(const image *in, int32_t height, int32_t width, arena *a,
                                     image *out);

#endif
