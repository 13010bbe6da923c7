/* image_fingerprint.c: what tells one decoder from another, and that those of this machine agree.
 */
#include <stdint.h>
#include <string.h>

#include "common/base/hash.h"
#include "prepd/sample/image_builtin.h"
#include "prepd/sample/image_jpeg.h"
#include "prepd/sample/ycc.h"

enum { FULL_BAND = 8 /* lines of builtin_full_jpeg at a time */ };

static status by_vips(span jpeg, const conf *limits, arena *a, image *out)
{
    conf vips = *limits;
    vips.image_decoder = DECODER_VIPS;
    return image_decode(jpeg, "built-in jpeg", &vips, a, out);
}

/* libvips brings a libjpeg of its own where it is not Debian's: then its pixels may be others, and
 * which decoder took a file would show. */
static status check_decoders(span jpeg, const conf *limits, arena *a)
{
    image direct, vips;
    bool done;
    TRY(image_jpeg_decode(jpeg, limits, NULL, a, &direct, &done));
    TRY(by_vips(jpeg, limits, a, &vips));
    if (!done || direct.width != vips.width || direct.height != vips.height ||
        memcmp(direct.rgb, vips.rgb, (size_t)vips.width * (size_t)vips.height * 3) != 0)
        return FAIL(ST_UNAVAILABLE, "libjpeg and libvips decode a JPEG to different pixels: they "
                                    "are not built on the same library; install Debian's of both");
    return ST_OK;
}

static void convert_planes(void *user, const uint8_t *const planes[3], int64_t stride, int32_t y)
{
    const image *im = user;
    uint8_t *rgb = im->rgb + (size_t)y * (size_t)im->width * 3;
    for (int32_t line = 0; line < FULL_BAND; line++)
        for (int32_t x = 0; x < im->width; x++, rgb += 3) {
            const int64_t at = line * stride + x;
            ycc_to_rgb(planes[0][at], planes[1][at], planes[2][at], rgb);
        }
}

/* The same where a picture's colours are converted here. */
static status check_colours(span jpeg, const conf *limits, arena *a)
{
    image vips, read, ours;
    bool done;
    TRY(by_vips(jpeg, limits, a, &vips));
    const size_t size = (size_t)vips.width * (size_t)vips.height * 3;
    ours = vips;
    TRY(arena_calloc(a, size, 1, (void **)&ours.rgb));
    const image_rows rows = {vips.height, vips.width, FULL_BAND, NULL, convert_planes, &ours};
    TRY(image_jpeg_decode(jpeg, limits, &rows, a, &read, &done));
    if (!done || read.rgb || memcmp(ours.rgb, vips.rgb, size) != 0)
        return FAIL(ST_UNAVAILABLE, "libjpeg converts the colours of a JPEG otherwise than prepd "
                                    "does: it is not libjpeg-turbo; install Debian's");
    return ST_OK;
}

status image_fingerprint(hash128 *out)
{
    const span files[] = {
        span_of(builtin_jpeg, sizeof builtin_jpeg),
        span_of(builtin_png, sizeof builtin_png),
        span_of(builtin_webp, sizeof builtin_webp),
    };
    static const char *const names[] = {"built-in jpeg", "built-in png", "built-in webp"};
    const conf limits = {.image_file_bytes = INT64_MAX, .image_input_pixels = INT64_MAX};
    status st = ST_OK;
    hasher *h = NULL;
    arena a;
    arena_init(&a, 0);
    TRY_OR(done, hasher_new(&h));
    TRY_OR(done, check_decoders(files[0], &limits, &a));
    TRY_OR(done, check_colours(span_of(builtin_full_jpeg, sizeof builtin_full_jpeg), &limits, &a));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        image im;
        TRY_OR(done, image_decode(files[i], names[i], &limits, &a, &im));
        hasher_add_u64(h, (uint64_t)im.width);
        hasher_add_u64(h, (uint64_t)im.height);
        hasher_add(h, im.rgb, (size_t)im.width * (size_t)im.height * 3);
    }
    *out = hasher_value(h);
done:
    hasher_free(&h);
    arena_done(&a);
    return st;
}
