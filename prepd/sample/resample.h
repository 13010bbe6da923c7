/* resample.h: separable antialiased bicubic of 8-bit pictures, bit-exact with the reference (spec
 * 7.3).
 *
 * Width pass first, its result stored as u8, then height; an axis of equal size is skipped.
 * RESAMPLER_TORCH: int16 weights with the reference's precision rule; RESAMPLER_PILLOW: 22-bit
 * int32 weights. RESAMPLER_PILLOW13: the same, but the height first where it shrinks by more than
 * twice as many pixels as the width (which may grow). */
#ifndef TESSERA_PREPD_SAMPLE_RESAMPLE_H
#define TESSERA_PREPD_SAMPLE_RESAMPLE_H

#include "common/base/arena.h"
#include "common/base/status.h"

/* A picture that is made row by row, so that what comes next finds the rows in the nearest cache.
 */
typedef struct resampler resampler;

/* method: RESAMPLER_TORCH, RESAMPLER_PILLOW or RESAMPLER_PILLOW13 of conf.h; channels 1 to 4.
 * in [in_height, in_width, channels] u8 borrowed until the last row was made. The resampler lies in
 * the arena, as does its scratch. */
WARN_UNUSED status resampler_new(int method, int channels, const uint8_t *in, int32_t in_height,
                                 int32_t in_width, int32_t out_height, int32_t out_width, arena *a,
                                 resampler **out);
/* Rows [from, from + n) of [out_height, out_width, channels], from rising: to out. */
void resampler_rows(resampler *r, int32_t from, int32_t n, uint8_t *out);

/* All of it at once; scratch comes from the arena and is released. */
WARN_UNUSED status resample_pixels(int method, int channels, const uint8_t *in, int32_t in_height,
                                   int32_t in_width, uint8_t *out, int32_t out_height,
                                   int32_t out_width, arena *scratch);

#endif
