/* SPDX-License-Identifier: Apache-2.0 */
/* fit.h: what size a picture gets and what it costs in patches and tokens. This is smart_resize of
 * transformers (models/qwen2_vl/image_processing_qwen2_vl.py) with a factor of 32:
 *
 *   1. Each side is rounded to the nearest multiple of 32.
 *   2. If the area is now above max_pixels, then beta = sqrt(height * width / max_pixels), and each
 *      side is instead max(32, floor(side / beta / 32) * 32), from the original side.
 *   3. If it is below min_pixels, then beta = sqrt(min_pixels / (height * width)), and each side is
 *      instead ceil(side * beta / 32) * 32. */
#ifndef TESSERA_PREPD_SAMPLE_FIT_H
#define TESSERA_PREPD_SAMPLE_FIT_H

#include <stdint.h>

#include "common/conf/conf.h"
#include "common/base/status.h"

/* The area after resizing, in pixels; from preprocessor_config.json or image.*. */
typedef struct fit_limits {
    int64_t min_pixels, max_pixels;
} fit_limits;

typedef struct fit_grid {
    int32_t height, width; /* pixels, multiples of 32 */
    int32_t rows, columns; /* patches of 16 x 16 pixels; both are even */
    int32_t pairs;         /* pairs of frames, each with such a grid (clip.h); 0: a still picture */
} fit_grid;

/* How many runs of pads stand for it in the text: one for a picture,
 * one for each pair of frames. */
static inline int32_t fit_runs(fit_grid grid)
{
    return grid.pairs > 0 ? grid.pairs : 1;
}

/* Tokens of one run: 2 x 2 patches are merged into one token. */
static inline int64_t fit_run_tokens(fit_grid grid)
{
    return (int64_t)grid.rows * grid.columns / 4;
}

static inline int64_t fit_patches(fit_grid grid)
{
    return (int64_t)grid.rows * grid.columns * fit_runs(grid);
}

static inline int64_t fit_tokens(fit_grid grid)
{
    return fit_run_tokens(grid) * fit_runs(grid);
}

/* The grid of an upright picture of height x width pixels. ST_BAD_INPUT if it is empty, if a side
 * has more than 2^24 pixels, or if one side is more than 200 times the other; ST_CONFIG for limits
 * that are not 1 <= min <= max. */
WARN_UNUSED status fit_image(int64_t height, int64_t width, fit_limits limits, fit_grid *out);

/* The same with the largest max_pixels, up to that of the limits, that gives at most `patches`
 * patches. This is how a picture that is too large is made to fit. ST_BAD_INPUT if even 32 x 32
 * pixels have more. */
WARN_UNUSED status fit_shrink(int64_t height, int64_t width, fit_limits limits, int64_t patches,
                              fit_grid *out);

/* Reads preprocessor_config.json of model.tokenizer, or else of model.path, and then
 * image.min_pixels and image.max_pixels, which override it. In the file, size.shortest_edge and
 * size.longest_edge are areas; min_pixels and max_pixels win over them. A file without sizes means
 * those of transformers' class (3136, 1003520); if there is no file, they are as published (65536,
 * 16777216).
 *
 * ST_BAD_INPUT for a processor that does something else than this folder. The file must give
 * patch_size 16, and 0.5 as mean and deviation, because the class has other defaults; if it speaks
 * of them, merge_size and temporal_patch_size must be 2, the filter bicubic, and no step left out.
 */
WARN_UNUSED status fit_limits_load(const conf *options, fit_limits *out);

#endif
