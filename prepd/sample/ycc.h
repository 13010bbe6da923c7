/* ycc.h: converts one pixel of a JPEG to RGB as libjpeg does (jdcolor.c), with the factors of JFIF
 * in fixed point with 16 bits of fraction:
 *
 *   red   = luma                      + 1.402 (cr - 128)
 *   green = luma - 0.344 (cb - 128)   - 0.714 (cr - 128)
 *   blue  = luma + 1.772 (cb - 128)
 *
 * libjpeg's vector code gives the same values. This defines what patch.h cuts out of planes. */
#ifndef TESSERA_PREPD_SAMPLE_YCC_H
#define TESSERA_PREPD_SAMPLE_YCC_H

#include <stdint.h>

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
