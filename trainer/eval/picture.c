/* picture.c: patches to pixels to PNG to base64, as picture.h describes it. */
#include "trainer/eval/picture.h"

#include <png.h>
#include <stdlib.h>
#include <string.h>

enum { CHANNELS = 3 };

/* Writes patches as pixels. They are in merge order, blocks of 2 x 2 one after another, and the
 * bytes of a patch run over channel, pixel_y, `pixel_x`. */
static void join_patches(const uint8_t *patch, int64_t high, int64_t wide, uint8_t *rgb)
{
    const int64_t stride = wide * PATCH_SIDE * CHANNELS, area = PATCH_SIDE * PATCH_SIDE;
    for (int64_t i = 0; i < high * wide; i++, patch += PATCH_BYTES) {
        int64_t block = i / (MERGE_SIDE * MERGE_SIDE), in = i % (MERGE_SIDE * MERGE_SIDE);
        int64_t line = block / (wide / MERGE_SIDE) * MERGE_SIDE + in / MERGE_SIDE;
        int64_t column = block % (wide / MERGE_SIDE) * MERGE_SIDE + in % MERGE_SIDE;
        uint8_t *to = rgb + line * PATCH_SIDE * stride + column * PATCH_SIDE * CHANNELS;
        for (int64_t pixel_y = 0; pixel_y < PATCH_SIDE; pixel_y++)
            for (int64_t pixel_x = 0; pixel_x < PATCH_SIDE; pixel_x++)
                for (int64_t channel = 0; channel < CHANNELS; channel++)
                    to[pixel_y * stride + pixel_x * CHANNELS + channel] =
                        patch[channel * area + pixel_y * PATCH_SIDE + pixel_x];
    }
}

/* Writes the base64 form of `count` bytes to out, in whole groups of four characters. */
static void put_base64(const uint8_t *bytes, size_t count, char *out)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < count; i += 3, out += 4) {
        uint32_t group = (uint32_t)bytes[i] << 16;
        group |= i + 1 < count ? (uint32_t)bytes[i + 1] << 8 : 0;
        group |= i + 2 < count ? bytes[i + 2] : 0;
        for (int j = 0; j < 4; j++)
            out[j] = digit[group >> (18 - 6 * j) & 63];
        if (i + 1 >= count)
            out[2] = '=';
        if (i + 2 >= count)
            out[3] = '=';
    }
    *out = 0;
}

static status encode_png(const uint8_t *rgb, int64_t high, int64_t wide, uint8_t **out,
                         size_t *out_n)
{
    png_image image = {.version = PNG_IMAGE_VERSION,
                       .width = (png_uint_32)wide,
                       .height = (png_uint_32)high,
                       .format = PNG_FORMAT_RGB};
    png_alloc_size_t length = PNG_IMAGE_PNG_SIZE_MAX(image);
    *out = malloc(length);
    if (!*out)
        return FAIL(ST_NO_MEMORY, "picture: out of memory");
    if (!png_image_write_to_memory(&image, *out, &length, 0, rgb, 0, NULL))
        return FAIL(ST_INTERNAL, "picture of %lld x %lld: libpng: %s", (long long)wide,
                    (long long)high, image.message);
    *out_n = length;
    return ST_OK;
}

status picture_data_uri(const row *packed, int64_t item, int64_t first_patch, char **out)
{
    static const char start[] = "data:image/png;base64,";
    const int32_t *grid = &packed->grid_thw[3 * item];
    const int64_t high = grid[1], wide = grid[2];
    uint8_t *rgb = malloc((size_t)(high * wide * PATCH_BYTES)), *png = NULL;
    size_t count = 0;
    status st = ST_OK;
    if (!rgb)
        return FAIL(ST_NO_MEMORY, "picture: out of memory");
    join_patches(packed->pixels + first_patch * PATCH_BYTES, high, wide, rgb);
    TRY_OR(done, encode_png(rgb, high * PATCH_SIDE, wide * PATCH_SIDE, &png, &count));
    char *text = malloc(sizeof start + (count + 2) / 3 * 4);
    if (!text) {
        st = FAIL(ST_NO_MEMORY, "picture: out of memory");
        goto done;
    }
    memcpy(text, start, sizeof start);
    put_base64(png, count, text + sizeof start - 1);
    *out = text;
done:
    free(png);
    free(rgb);
    return st;
}
