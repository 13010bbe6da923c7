/* SPDX-License-Identifier: Apache-2.0 */
/* clip.h: the arithmetic of a video: which frames are taken, at what size, and the text that says
 * when they are. The results are those of transformers 4.57, with which Qwen3-VL was published
 * (models/qwen3_vl/video_processing_qwen3_vl.py: sample_frames and smart_resize;
 * models/qwen3_vl/processing_qwen3_vl.py: the text). Decoding is in video.h.
 *
 * Frames are taken in pairs; if their number is odd, the last one counts twice. In the model a pair
 * is one step in time and has its own grid. In the text it is its time, <|vision_start|>, its
 * pads and <|vision_end|>. */
#ifndef TESSERA_PREPD_SAMPLE_CLIP_H
#define TESSERA_PREPD_SAMPLE_CLIP_H

#include <stdint.h>

#include "common/base/arena.h"
#include "common/conf/conf.h"
#include "common/base/status.h"
#include "prepd/sample/fit.h"

typedef struct clip_limits {
    int64_t min_pixels, max_pixels; /* height * width * frames after resizing; 4096, 25165824 */
    int64_t min_frames, max_frames; /* 4, 768 */
    double fps;                     /* how many frames a second are taken; 2 */
} clip_limits;

/* The limits as published: video_preprocessor_config.json and the processor's own defaults. */
extern const clip_limits clip_published;

/* Reads video_preprocessor_config.json of model.tokenizer, or else of model.path, and then the
 * options video.*, which override it. If the file gives no sizes, they are those of transformers'
 * class; if there is no file, all limits are as published. The errors are those of
 * fit_limits_load. */
WARN_UNUSED status clip_limits_load(const conf *options, clip_limits *out);

/* Stands in for an unknown rate, in frames a second. */
#define CLIP_UNKNOWN_FPS 24.0

/* Chooses frames of a video of `total` frames at `fps` (0: unknown). They are numbered from 0, and
 * spread evenly from the first to the last. *out_index [*out_n] lies in `memory`, ascending.
 * ST_BAD_INPUT if there are no frames or the rate is impossible. */
WARN_UNUSED status clip_choose(int64_t total, double fps, const clip_limits *limits, arena *memory,
                               int64_t **out_index, int64_t *out_n);

/* How many frames clip_choose takes. */
WARN_UNUSED status clip_count(int64_t total, double fps, const clip_limits *limits, int64_t *out_n);

/* The grid of n_frames chosen frames of height x width pixels: the size of every frame, and how
 * many pairs there are. ST_BAD_INPUT where transformers refuses too: fewer than 2 frames, a side of
 * less than 32 pixels, or one side over 200 times the other. */
WARN_UNUSED status clip_fit(int64_t n_frames, int64_t height, int64_t width,
                            const clip_limits *limits, fit_grid *out);

/* The same with the largest max_pixels that gives at most `patches` patches in all pairs together.
 * ST_BAD_INPUT if even frames of 32 x 32 pixels have more. */
WARN_UNUSED status clip_shrink(int64_t n_frames, int64_t height, int64_t width,
                               const clip_limits *limits, int64_t patches, fit_grid *out);

static inline int64_t clip_pairs(int64_t n_frames)
{
    return n_frames / 2 + n_frames % 2;
}

/* When a pair is, in seconds from the start: the mean of the times of its two frames. `index`
 * [count] is that of clip_choose; pair < clip_pairs(count). */
double clip_seconds(const int64_t *index, int64_t count, int64_t pair, double fps);

enum { CLIP_TEXT = 48 }; /* bytes of the longest text, with its end */
/* Writes "<0.3 seconds>", with one decimal that is rounded from the exact binary value, as Python
 * does. Returns its length. */
int clip_text(double seconds, char out[CLIP_TEXT]);

#endif
