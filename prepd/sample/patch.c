#include "prepd/sample/patch.h"

#include <assert.h>

#include "prepd/sample/patch_cutter.h"
#include "proto/batch.h"

enum {
    CHANNELS = 3,
    BLOCK = PATCH_SIDE * MERGE_SIDE,
    PLANE_BYTES = PATCH_SIDE * PATCH_SIDE,
};

/* First byte of the picture's pixel at the upper left corner of the i-th patch in merge order: the
 * four patches of a 2 x 2 block follow each other, blocks go row by row. */
static int64_t corner_of(int64_t i, int32_t width)
{
    const int64_t block = i / (MERGE_SIDE * MERGE_SIDE), in_block = i % (MERGE_SIDE * MERGE_SIDE);
    const int64_t blocks_per_row = width / BLOCK;
    const int64_t y = block / blocks_per_row * BLOCK + in_block / MERGE_SIDE * (int64_t)PATCH_SIDE;
    const int64_t x = block % blocks_per_row * BLOCK + in_block % MERGE_SIDE * (int64_t)PATCH_SIDE;
    return (y * width + x) * CHANNELS;
}

static int64_t count_of(int32_t height, int32_t width)
{
    assert(height > 0 && width > 0 && height % BLOCK == 0 && width % BLOCK == 0);
    return (int64_t)(height / PATCH_SIDE) * (width / PATCH_SIDE);
}

void patch_cut_plain(const uint8_t *from, int64_t stride, uint8_t *to)
{
    for (int y = 0; y < PATCH_SIDE; y++, from += stride, to += PATCH_SIDE) {
        for (int x = 0; x < PATCH_SIDE; x++) {
            to[x] = from[x * CHANNELS];
            to[x + PLANE_BYTES] = from[x * CHANNELS + 1];
            to[x + 2 * PLANE_BYTES] = from[x * CHANNELS + 2];
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

void patch_cut(const uint8_t *rgb, int32_t height, int32_t width, uint8_t *patches)
{
    const int64_t n_patches = count_of(height, width), stride = (int64_t)width * CHANNELS;
    const patch_cutter cut = patch_cutter_here();
    for (int64_t i = 0; i < n_patches; i++)
        cut(rgb + corner_of(i, width), stride, patches + i * PATCH_BYTES);
}

void patch_cut_pair(const uint8_t *first, const uint8_t *second, int32_t height, int32_t width,
                    uint8_t *patches)
{
    const int64_t n_patches = count_of(height, width), stride = (int64_t)width * CHANNELS;
    const uint8_t *const frames[] = {first, second};
    for (int64_t i = 0; i < n_patches; i++, patches += VIDEO_PATCH_BYTES)
        for (int f = 0; f < 2; f++) {
            const uint8_t *from = frames[f] + corner_of(i, width);
            uint8_t *to = patches + (int64_t)f * PLANE_BYTES;
            for (int y = 0; y < PATCH_SIDE; y++, from += stride, to += PATCH_SIDE)
                for (int x = 0; x < PATCH_SIDE; x++)
                    for (int c = 0; c < CHANNELS; c++)
                        to[x + 2 * c * PLANE_BYTES] = from[x * CHANNELS + c];
        }
}

void patch_join(const uint8_t *patches, int32_t height, int32_t width, uint8_t *rgb)
{
    const int64_t n_patches = count_of(height, width), stride = (int64_t)width * CHANNELS;
    for (int64_t i = 0; i < n_patches; i++, patches += PATCH_BYTES) {
        uint8_t *to = rgb + corner_of(i, width);
        const uint8_t *from = patches;
        for (int y = 0; y < PATCH_SIDE; y++, to += stride, from += PATCH_SIDE) {
            for (int x = 0; x < PATCH_SIDE; x++) {
                to[x * CHANNELS] = from[x];
                to[x * CHANNELS + 1] = from[x + PLANE_BYTES];
                to[x * CHANNELS + 2] = from[x + 2 * PLANE_BYTES];
            }
        }
    }
}
