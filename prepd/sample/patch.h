/* SPDX-License-Identifier: Apache-2.0 */
/* patch.h: cuts an RGB picture into the patches that the vision tower reads, as bytes.
 *
 * A patch has 16 x 16 pixels. 2 x 2 neighbouring patches become one token, so they follow each
 * other. Of a picture with W columns of patches, the patch in row 2R + r and column 2C + c is row
 *
 *   ((R * W / 2 + C) * 2 + r) * 2 + c
 *
 * of the result. Inside a patch the order is channel, y, x. This is the order of transformers'
 * _preprocess (models/qwen2_vl/image_processing_qwen2_vl.py), without its second copy of the
 * picture in time and without its normalisation. */
#ifndef TESSERA_PREPD_SAMPLE_PATCH_H
#define TESSERA_PREPD_SAMPLE_PATCH_H

#include <stdint.h>

/* Cuts rgb [height, width, 3], both sides multiples of 32,
 * to patches [height/16 * width/16, 768]. */
void patch_cut(const uint8_t *rgb, int32_t height, int32_t width, uint8_t *patches);
/* The same from a JPEG's planes before their conversion to RGB (patch.h): luma and the two colour
 * differences, in rows of `stride` bytes. */
void patch_cut_ycc(const uint8_t *const planes[3], int64_t stride, int32_t height, int32_t width,
                   uint8_t *patches);
/* Cuts two frames of that size to patches [height/16 * width/16, 1536]. Inside a patch the order is
 * channel, frame, y, x. */
void patch_cut_pair(const uint8_t *first, const uint8_t *second, int32_t height, int32_t width,
                    uint8_t *patches);
/* The inverse of patch_cut, to look at a sample. */
void patch_join(const uint8_t *patches, int32_t height, int32_t width, uint8_t *rgb);

/* The functions that cut a single patch, for several instruction sets. All give the
 * same bytes. Private to patch*.c and their test. */

/* Cuts the patch whose first pixel is at `from`, in rows of `stride` bytes, to `to` [768], in the
 * order channel, y, x. */
typedef void (*patch_cutter)(const uint8_t *from, int64_t stride, uint8_t *to);

void patch_cut_plain(const uint8_t *from, int64_t stride, uint8_t *to); /* defines the result */
extern const patch_cutter patch_cut_avx2; /* NULL if the compiler has no AVX2 */

/* The same from three planes, luma and the two colour differences of a JPEG, in rows of `stride`
 * bytes. */
typedef void (*patch_ycc_cutter)(const uint8_t *const from[3], int64_t stride, uint8_t *to);

void patch_cut_ycc_plain(const uint8_t *const from[3], int64_t stride, uint8_t *to);
extern const patch_ycc_cutter patch_cut_ycc_avx2; /* NULL if the compiler has no AVX2 */

/* The fastest that this processor can run. */
patch_cutter patch_cutter_here(void);
patch_ycc_cutter patch_ycc_cutter_here(void);

/* Converts one pixel of a JPEG to RGB as libjpeg does (jdcolor.c), with the factors of JFIF
 * in fixed point with 16 bits of fraction:
 *
 *   red   = luma                      + 1.402 (cr - 128)
 *   green = luma - 0.344 (cb - 128)   - 0.714 (cr - 128)
 *   blue  = luma + 1.772 (cb - 128)
 *
 * libjpeg's vector code gives the same values. This defines what patch.h cuts out of planes. */

enum { YCC_CENTRE = 128, YCC_HALF = 1 << 15, YCC_BITS = 16 };

static inline uint8_t ycc_clip(int value)
{
    return (uint8_t)(value < 0 ? 0 : value > UINT8_MAX ? UINT8_MAX : value);
}

static inline void ycc_to_rgb(int luma, int cb, int cr, uint8_t rgb[3])
{
    cb -= YCC_CENTRE;
    cr -= YCC_CENTRE;
    rgb[0] = ycc_clip(luma + ((91881 * cr + YCC_HALF) >> YCC_BITS)); /* 1.402 */
    rgb[1] =
        ycc_clip(luma + ((-22554 * cb - 46802 * cr + YCC_HALF) >> YCC_BITS)); /* 0.344, 0.714 */
    rgb[2] = ycc_clip(luma + ((116130 * cb + YCC_HALF) >> YCC_BITS));         /* 1.772 */
}

#endif
