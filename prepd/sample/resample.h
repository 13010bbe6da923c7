/* resample.h: resizes 8-bit pictures with an antialiased bicubic filter, one axis at a time, bit
 * for bit as the libraries do that transformers uses.
 *
 * The width comes first and its result is stored as bytes, then the height; an axis whose size does
 * not change is skipped. The methods (image.resampler) differ in how they round the weights:
 *
 *   RESAMPLER_TORCH     16-bit weights, with as many bits of fraction as the largest one allows
 *   RESAMPLER_PILLOW    32-bit weights with 22 bits of fraction
 *   RESAMPLER_PILLOW13  the same, with another rule for which axis comes first
 *
 * The first is PyTorch's interpolate on uint8 tensors (aten/native/cpu/UpSampleKernel.cpp), the
 * second Pillow's resize (libImaging/Resample.c). Since Pillow 13 the height comes first if it
 * shrinks by more than twice as many pixels as the width does, which may also grow. */
#ifndef TESSERA_PREPD_SAMPLE_RESAMPLE_H
#define TESSERA_PREPD_SAMPLE_RESAMPLE_H

#include "common/base/arena.h"
#include "common/base/status.h"

/* A picture that is made row by row, so that its user finds the rows in the nearest cache. */
typedef struct resampler resampler;

/* Prepares to resize `in` [in_height, in_width, channels], which is borrowed until the last row was
 * made. `method` is one of the three above; channels are 1 to 4. The resampler and what it needs
 * lie in `memory`. ST_NO_MEMORY is the only error. */
WARN_UNUSED status resampler_new(int method, int channels, const uint8_t *in, int32_t in_height,
                                 int32_t in_width, int32_t out_height, int32_t out_width,
                                 arena *memory, resampler **out);
/* Makes rows [from, from + count) of the result [out_height, out_width, channels] and writes them
 * to `out`. `from` must not fall from one call to the next. */
void resampler_rows(resampler *maker, int32_t from, int32_t count, uint8_t *out);

/* Resizes a whole picture. What it needs is taken from `scratch` and released. */
WARN_UNUSED status resample_pixels(int method, int channels, const uint8_t *in, int32_t in_height,
                                   int32_t in_width, uint8_t *out, int32_t out_height,
                                   int32_t out_width, arena *scratch);

#endif
