/* SPDX-License-Identifier: Apache-2.0 */
/* image_fingerprint.c: the hash that identifies a set of decoders. Before it is made, the
 * decoders of this machine are compared with each other: libjpeg with libvips, and the library's
 * conversion of colours with patch.h. */
#include <stdint.h>
#include <string.h>

#include "common/base/hash.h"
#include "prepd/sample/decode/image_builtin.h"
#include "prepd/sample/decode/image_jpeg.h"
#include "prepd/sample/patch.h"

enum { FULL_BAND = 8 /* lines of builtin_full_jpeg at a time */ };

static status by_vips(span jpeg, const conf *limits, arena *memory, image *out)
{
    conf vips = *limits;
    vips.image_decoder = DECODER_VIPS;
    return image_decode(jpeg, "built-in jpeg", &vips, memory, out);
}

/* A libvips that is not Debian's may bring its own libjpeg. Then its pixels may differ, and it
 * would show which of the two decoders took a file. */
static status check_decoders(span jpeg, const conf *limits, arena *memory)
{
    image direct, vips;
    bool done;
    TRY(image_jpeg_decode(jpeg, limits, NULL, memory, &direct, &done));
    TRY(by_vips(jpeg, limits, memory, &vips));
    if (!done || direct.width != vips.width || direct.height != vips.height ||
        memcmp(direct.rgb, vips.rgb, (size_t)vips.width * (size_t)vips.height * 3) != 0)
        return FAIL(ST_UNAVAILABLE,
                    "libjpeg and libvips decode a JPEG to different pixels, because "
                    "they are built on different libraries: install Debian's "
                    "packages of both");
    return ST_OK;
}

static void convert_planes(void *user, const uint8_t *const planes[3], int64_t stride, int32_t row)
{
    const image *im = user;
    uint8_t *rgb = im->rgb + (size_t)row * (size_t)im->width * 3;
    for (int32_t line = 0; line < FULL_BAND; line++)
        for (int32_t width = 0; width < im->width; width++, rgb += 3) {
            const int64_t at = line * stride + width;
            ycc_to_rgb(planes[0][at], planes[1][at], planes[2][at], rgb);
        }
}

/* The same for a picture whose colours are converted by patch.h. */
static status check_colours(span jpeg, const conf *limits, arena *memory)
{
    image vips, read, ours;
    bool done;
    TRY(by_vips(jpeg, limits, memory, &vips));
    const size_t size = (size_t)vips.width * (size_t)vips.height * 3;
    ours = vips;
    TRY(arena_calloc(memory, size, 1, (void **)&ours.rgb));
    const image_rows rows = {vips.height, vips.width, FULL_BAND, NULL, convert_planes, &ours};
    TRY(image_jpeg_decode(jpeg, limits, &rows, memory, &read, &done));
    if (!done || read.rgb || memcmp(ours.rgb, vips.rgb, size) != 0)
        return FAIL(ST_UNAVAILABLE,
                    "libjpeg converts the colours of a JPEG differently from prepd, so "
                    "it is not libjpeg-turbo: install Debian's package");
    return ST_OK;
}

status image_fingerprint(hash128 *out)
{
    /* One of each format, so that workers whose decoders differ in any of them differ here. */
    static const struct {
        const char *name;
        const uint8_t *bytes;
        size_t size;
    } files[] = {
#define PICTURE_FORMAT(id, loader, ...)                                                            \
    {"built-in " #loader, builtin_##loader, sizeof builtin_##loader},
#include "prepd/dataset/picture_formats.def"
    };
    const span jpeg = span_of(builtin_jpeg, sizeof builtin_jpeg);
    const conf limits = {.image_file_bytes = INT64_MAX, .image_input_pixels = INT64_MAX};
    status st = ST_OK;
    hasher *hash = NULL;
    arena memory;
    arena_init(&memory, 0);
    TRY_OR(done, hasher_new(&hash));
    TRY_OR(done, check_decoders(jpeg, &limits, &memory));
    TRY_OR(done,
           check_colours(span_of(builtin_full_jpeg, sizeof builtin_full_jpeg), &limits, &memory));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        image im;
        TRY_OR(done, image_decode(span_of(files[i].bytes, files[i].size), files[i].name, &limits,
                                  &memory, &im));
        hasher_add_u64(hash, (uint64_t)im.width);
        hasher_add_u64(hash, (uint64_t)im.height);
        hasher_add(hash, im.rgb, (size_t)im.width * (size_t)im.height * 3);
    }
    *out = hasher_value(hash);
done:
    hasher_free(&hash);
    arena_done(&memory);
    return st;
}
