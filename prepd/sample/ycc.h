/* ycc.h: the colours of a JPEG's pixel as libjpeg converts them, which all of its vector code gives
 * too: JFIF's factors in 16 bits of fraction, rounded. The reference of what patch.h cuts out of
 * planes. */
#ifndef TESSERA_PREPD_SAMPLE_YCC_H
#define TESSERA_PREPD_SAMPLE_YCC_H

#include <stdint.h>

enum { YCC_CENTRE = 128, YCC_HALF = 1 << 15, YCC_BITS = 16 };

static inline uint8_t ycc_clip(int v)
{
    return (uint8_t)(v < 0 ? 0 : v > UINT8_MAX ? UINT8_MAX : v);
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
