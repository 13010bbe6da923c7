/* SPDX-License-Identifier: Apache-2.0 */
/* patch.c: the order of patches, and the plain loops that define their contents. patch_avx2.c has
 * faster ones. */
#include "prepd/sample/patch.h"

#include <assert.h>

#include "proto/row/batch.h"

enum {
    CHANNELS = 3,
    BLOCK = PATCH_SIDE * MERGE_SIDE,
    PLANE_BYTES = PATCH_SIDE * PATCH_SIDE,
};

/* The offset of the first pixel of patch `index`, in rows of `stride` bytes with `step` bytes for a
 * pixel. The four patches of a 2 x 2 block follow each other, and blocks go row by row. */
static int64_t corner_of(int64_t index, int32_t width, int64_t stride, int step)
{
    const int64_t block = index / (MERGE_SIDE * MERGE_SIDE),
                  in_block = index % (MERGE_SIDE * MERGE_SIDE);
    const int64_t blocks_per_row = width / BLOCK;
    const int64_t pixel_row =
        block / blocks_per_row * BLOCK + in_block / MERGE_SIDE * (int64_t)PATCH_SIDE;
    const int64_t pixel_column =
        block % blocks_per_row * BLOCK + in_block % MERGE_SIDE * (int64_t)PATCH_SIDE;
    return pixel_row * stride + pixel_column * step;
}

static int64_t count_of(int32_t height, int32_t width)
{
    assert(height > 0 && width > 0 && height % BLOCK == 0 && width % BLOCK == 0);
    return (int64_t)(height / PATCH_SIDE) * (width / PATCH_SIDE);
}

void patch_cut_plain(const uint8_t *from, int64_t stride, uint8_t *to)
{
    for (int i = 0; i < PATCH_SIDE; i++, from += stride, to += PATCH_SIDE) {
        for (int j = 0; j < PATCH_SIDE; j++) {
            to[j] = from[j * CHANNELS];
            to[j + PLANE_BYTES] = from[j * CHANNELS + 1];
            to[j + 2 * PLANE_BYTES] = from[j * CHANNELS + 2];
        }
    }
}

void patch_cut_ycc_plain(const uint8_t *const from[3], int64_t stride, uint8_t *to)
{
    for (int i = 0; i < PATCH_SIDE; i++, to += PATCH_SIDE) {
        for (int j = 0; j < PATCH_SIDE; j++) {
            const int64_t at = i * stride + j;
            uint8_t rgb[3];
            ycc_to_rgb(from[0][at], from[1][at], from[2][at], rgb);
            to[j] = rgb[0];
            to[j + PLANE_BYTES] = rgb[1];
            to[j + 2 * PLANE_BYTES] = rgb[2];
        }
    }
}

patch_cutter patch_cutter_here(void)
{
#if defined(__x86_64__)
    if (patch_cut_avx2 && __builtin_cpu_supports("avx2"))
        return patch_cut_avx2;
#endif
    return patch_cut_plain;
}

patch_ycc_cutter patch_ycc_cutter_here(void)
{
#if defined(__x86_64__)
    if (patch_cut_ycc_avx2 && __builtin_cpu_supports("avx2"))
        return patch_cut_ycc_avx2;
#endif
    return patch_cut_ycc_plain;
}

void patch_cut(const uint8_t *rgb, int32_t height, int32_t width, uint8_t *patches)
{
    const int64_t n_patches = count_of(height, width), stride = (int64_t)width * CHANNELS;
    const patch_cutter cut = patch_cutter_here();
    for (int64_t i = 0; i < n_patches; i++)
        cut(rgb + corner_of(i, width, stride, CHANNELS), stride, patches + i * PATCH_BYTES);
}

void patch_cut_ycc(const uint8_t *const planes[3], int64_t stride, int32_t height, int32_t width,
                   uint8_t *patches)
{
    const int64_t n_patches = count_of(height, width);
    const patch_ycc_cutter cut = patch_ycc_cutter_here();
    for (int64_t i = 0; i < n_patches; i++) {
        const int64_t at = corner_of(i, width, stride, 1);
        const uint8_t *const from[] = {planes[0] + at, planes[1] + at, planes[2] + at};
        cut(from, stride, patches + i * PATCH_BYTES);
    }
}

void patch_cut_pair(const uint8_t *first, const uint8_t *second, int32_t height, int32_t width,
                    uint8_t *patches)
{
    const int64_t n_patches = count_of(height, width), stride = (int64_t)width * CHANNELS;
    const uint8_t *const frames[] = {first, second};
    for (int64_t i = 0; i < n_patches; i++, patches += VIDEO_PATCH_BYTES)
        for (int j = 0; j < 2; j++) {
            const uint8_t *from = frames[j] + corner_of(i, width, stride, CHANNELS);
            uint8_t *to = patches + (int64_t)j * PLANE_BYTES;
            for (int k = 0; k < PATCH_SIDE; k++, from += stride, to += PATCH_SIDE)
                for (int column = 0; column < PATCH_SIDE; column++)
                    for (int channel = 0; channel < CHANNELS; channel++)
                        to[column + 2 * channel * PLANE_BYTES] = from[column * CHANNELS + channel];
        }
}

void patch_join(const uint8_t *patches, int32_t height, int32_t width, uint8_t *rgb)
{
    const int64_t n_patches = count_of(height, width), stride = (int64_t)width * CHANNELS;
    for (int64_t i = 0; i < n_patches; i++, patches += PATCH_BYTES) {
        uint8_t *to = rgb + corner_of(i, width, stride, CHANNELS);
        const uint8_t *from = patches;
        for (int j = 0; j < PATCH_SIDE; j++, to += stride, from += PATCH_SIDE) {
            for (int k = 0; k < PATCH_SIDE; k++) {
                to[k * CHANNELS] = from[k];
                to[k * CHANNELS + 1] = from[k + PLANE_BYTES];
                to[k * CHANNELS + 2] = from[k + 2 * PLANE_BYTES];
            }
        }
    }
}
