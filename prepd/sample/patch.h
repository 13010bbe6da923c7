/* patch.h: an RGB picture cut into 16x16 patches in model (merge) order, u8.
 *
 * Row (R, C, r, c) of patches [S, 768]: patch (2R + r, 2C + c); columns (channel, y, x) (spec 7.5).
 */
#ifndef TESSERA_PREPD_SAMPLE_PATCH_H
#define TESSERA_PREPD_SAMPLE_PATCH_H

#include <stdint.h>

/* rgb [height, width, 3], both multiples of 32; patches [height/16 * width/16, 768] written. */
void patch_cut(const uint8_t *rgb, int32_t height, int32_t width, uint8_t *patches);
/* The same of a JPEG's planes before their conversion to RGB (ycc.h): luma and the two colour
 * differences, rows of stride bytes each. */
void patch_cut_ycc(const uint8_t *const planes[3], int64_t stride, int32_t height, int32_t width,
                   uint8_t *patches);
/* Two frames of that size: patches [height/16 * width/16, 1536], columns (channel, frame, y, x). */
void patch_cut_pair(const uint8_t *first, const uint8_t *second, int32_t height, int32_t width,
                    uint8_t *patches);
/* The inverse, to look at a sample. */
void patch_join(const uint8_t *patches, int32_t height, int32_t width, uint8_t *rgb);

#endif
