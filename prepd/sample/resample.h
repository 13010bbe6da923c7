/* resample.h: separable antialiased bicubic of 8-bit RGB, bit-exact with the reference (spec 7.3).
 *
 * Width pass first, its result stored as u8, then height; an axis of equal size is skipped.
 * RESAMPLE_TORCH: int16 weights with the reference's precision rule; RESAMPLE_PILLOW: 22-bit
 * int32 weights. */
#ifndef TESSERA_PREPD_RESAMPLE_H
#define TESSERA_PREPD_RESAMPLE_H

#include "common/arena.h"
#include "common/status.h"

/* method: RESAMPLER_TORCH or RESAMPLER_PILLOW of conf.h.
 * in [in_height, in_width, channels] u8 borrowed; out [out_height, out_width, channels] u8 written.
 * Scratch comes from the arena and is released. */
WARN_UNUSED status resample(int method, int channels, const uint8_t *in, int32_t in_height,
                            int32_t in_width, uint8_t *out, int32_t out_height, int32_t out_width,
                            arena *scratch);

#endif
