/* fit.h: grid arithmetic, pure: smart_resize and what an image costs (spec section 7.2). */
#ifndef TESSERA_PREPD_SAMPLE_FIT_H
#define TESSERA_PREPD_SAMPLE_FIT_H

#include <stdint.h>

#include "common/conf/conf.h"
#include "common/base/status.h"

typedef struct fit_limits {
    int64_t min_pixels,
        max_pixels; /* area after resizing; from preprocessor_config.json or image.* */
} fit_limits;

typedef struct fit_grid {
    int32_t height, width; /* pixels, multiples of 32 */
    int32_t h, w;          /* patches, even */
    int32_t pairs;         /* of frames, each a grid of its own; 0: a still picture (clip.h) */
} fit_grid;

/* Grids of the item: each has its pads in one piece. */
static inline int32_t fit_runs(fit_grid g)
{
    return g.pairs > 0 ? g.pairs : 1;
}

static inline int64_t fit_run_tokens(fit_grid g)
{
    return (int64_t)g.h * g.w / 4;
}

static inline int64_t fit_patches(fit_grid g)
{
    return (int64_t)g.h * g.w * fit_runs(g);
}

static inline int64_t fit_tokens(fit_grid g)
{
    return fit_run_tokens(g) * fit_runs(g);
}

/* smart_resize of an oriented height x width; refuses aspect ratios over 200 and empty sizes. */
WARN_UNUSED status fit_image(int64_t height, int64_t width, fit_limits limits, fit_grid *out);

/* The largest max_pixels <= limits.max_pixels whose grid has at most `patches` patches, applied:
 * shrinking by policy. Refuses where even 32 x 32 does not fit. */
WARN_UNUSED status fit_shrink(int64_t height, int64_t width, fit_limits limits, int64_t patches,
                              fit_grid *out);

/* preprocessor_config.json of model.tokenizer or else model.path (size.shortest_edge and
 * longest_edge, which are areas; min_pixels and max_pixels win over them), overridden by
 * image.min_pixels and image.max_pixels; a file without sizes means those of the reference's class
 * (3136, 1003520). patch_size 16, mean and deviation 0.5 must be said, since the class has others;
 * merge_size 2, temporal 2, bicubic and every step done are required where the file speaks of them.
 * Missing file: the published sizes (65536, 16777216). */
WARN_UNUSED status fit_limits_load(const conf *c, fit_limits *out);

#endif
