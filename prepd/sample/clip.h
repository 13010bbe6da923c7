/* clip.h: the arithmetic of a video, pure: which frames, at what size, and the words that tell when
 * (spec section 7.6, in the form of transformers 4.57: the one the model was published with).
 * Decoding is elsewhere.
 *
 * Frames are taken in pairs (the last one twice where their number is odd); a pair is one grid in
 * time, and stands in the text as its time, <|vision_start|>, its pads, <|vision_end|>. */
#ifndef TESSERA_PREPD_SAMPLE_CLIP_H
#define TESSERA_PREPD_SAMPLE_CLIP_H

#include <stdint.h>

#include "common/base/arena.h"
#include "common/conf/conf.h"
#include "common/base/status.h"
#include "prepd/sample/fit.h"

typedef struct clip_limits {
    int64_t min_pixels, max_pixels; /* area times frames after resizing; 4096, 25165824 */
    int64_t min_frames, max_frames; /* 4, 768 */
    double fps;                     /* frames per second to be taken; 2 */
} clip_limits;

/* As published (video_preprocessor_config.json and the processor's own defaults). */
extern const clip_limits clip_published;

/* video_preprocessor_config.json of model.tokenizer or else model.path, overridden by video.*; a
 * file without sizes means those of the reference's class; without a file, as published. As
 * fit_limits_load, which reads the pictures' file. */
WARN_UNUSED status clip_limits_load(const conf *c, clip_limits *out);

/* The rate that stands in for an unknown one, in frames per second. */
#define CLIP_UNKNOWN_FPS 24.0

/* Frame numbers of a video of `total` frames at `fps` (0: unknown), ascending from the first to the
 * last, never more than there are. Written to out_index [out_n] in the arena. ST_BAD_INPUT: no
 * frames, or an impossible rate. */
WARN_UNUSED status clip_choose(int64_t total, double fps, const clip_limits *limits, arena *a,
                               int64_t **out_index, int64_t *out_n);

/* How many clip_choose takes. */
WARN_UNUSED status clip_count(int64_t total, double fps, const clip_limits *limits, int64_t *out_n);

/* Grid of n_frames chosen frames of height x width: size of every frame, and how many pairs.
 * ST_BAD_INPUT as the reference refuses: fewer than 2 frames, a side under 32 pixels, one side over
 * 200 times the other. */
WARN_UNUSED status clip_fit(int64_t n_frames, int64_t height, int64_t width,
                            const clip_limits *limits, fit_grid *out);

/* The same with the largest max_pixels that gives at most `patches` patches in all pairs together.
 * Refuses where even frames of 32 x 32 do not fit. */
WARN_UNUSED status clip_shrink(int64_t n_frames, int64_t height, int64_t width,
                               const clip_limits *limits, int64_t patches, fit_grid *out);

static inline int64_t clip_pairs(int64_t n_frames)
{
    return n_frames / 2 + n_frames % 2;
}

/* When a pair is, in seconds from the start: the mean of its two frames' times. pair < pairs of n.
 */
double clip_seconds(const int64_t *index, int64_t n, int64_t pair, double fps);

enum { CLIP_TEXT = 48 }; /* bytes of the longest text, its end included */
/* "<0.3 seconds>": one decimal, rounded as the exact binary value says. Returns its length. */
int clip_text(double seconds, char out[CLIP_TEXT]);

#endif
