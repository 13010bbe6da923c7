/* SPDX-License-Identifier: Apache-2.0 */
/* clip.c: the arithmetic of clip.h. Doubles, their order and their rounding (half to even) are
 * those of the Python code, because the results must be the same for every video. */
#include "prepd/sample/clip.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "proto/row/batch.h"

enum {
    FACTOR = PATCH_SIDE * MERGE_SIDE, /* pixels on a side of a merged token */
    PAIR = 2,                         /* frames that share a grid */
    MAX_ASPECT = 200,                 /* the bound of transformers */
    MAX_SIDE = 1 << 20,               /* of a frame, so that products of its sides fit int64 */
};

static const int64_t MAX_VOLUME = (int64_t)1 << 53; /* pixels of all frames, exact in a double */
static const int64_t MAX_TOTAL = (int64_t)1 << 40;  /* frames of a file, a thousand years of them */

const clip_limits clip_published = {4096, 25165824, 4, 768, 2.0};

static double known_rate(double fps)
{
    return fps == 0.0 ? CLIP_UNKNOWN_FPS : fps;
}

/* How many frames are taken: as the rates say, but within the limits and no more than there are. */
static int64_t count_of(int64_t total, double fps, const clip_limits *limits)
{
    const double wanted = (double)total / fps * limits->fps; /* in this order */
    int64_t count = wanted < (double)limits->max_frames ? (int64_t)wanted : limits->max_frames;
    count = count > limits->min_frames ? count : limits->min_frames;
    count = count < limits->max_frames ? count : limits->max_frames;
    return count < total ? count : total;
}

status clip_count(int64_t total, double fps, const clip_limits *limits, int64_t *out_n)
{
    fps = known_rate(fps);
    if (total < 1 || total > MAX_TOTAL)
        return FAIL(ST_BAD_INPUT, "the video has %" PRId64 " frames, expected 1 to %" PRId64, total,
                    MAX_TOTAL);
    if (!isfinite(fps) || fps < 0.0)
        return FAIL(ST_BAD_INPUT, "the video has %g frames per second, expected a positive number",
                    fps);
    if (limits->min_frames < 1 || limits->max_frames < limits->min_frames || !(limits->fps > 0.0))
        return FAIL(ST_CONFIG,
                    "a clip has from %" PRId64 " to %" PRId64
                    " frames (video.max_frames) and video.fps is %g: expected "
                    "1 <= min <= max and a positive rate",
                    limits->min_frames, limits->max_frames, limits->fps);
    *out_n = count_of(total, fps, limits);
    return ST_OK;
}

status clip_choose(int64_t total, double fps, const clip_limits *limits, arena *memory,
                   int64_t **out_index, int64_t *out_n)
{
    int64_t count, *index;
    TRY(clip_count(total, fps, limits, &count));
    TRY(arena_calloc(memory, (size_t)count, sizeof *index, (void **)&index));
    /* Evenly from the first frame to the last, as numpy's linspace: the step is rounded once, and
     * each of its multiples once, half to even. The last one is set, because its multiple may be
     * off by one. */
    const double last = (double)(total - 1);
    const double step = count > 1 ? last / (double)(count - 1) : 0.0;
    for (int64_t i = 0; i < count; i++)
        index[i] = (int64_t)nearbyint((double)i * step);
    if (count > 1)
        index[count - 1] = total - 1;
    *out_index = index;
    *out_n = count;
    return ST_OK;
}

static status check_frames(int64_t n_frames, int64_t height, int64_t width,
                           const clip_limits *limits)
{
    if (limits->min_pixels < 1 || limits->max_pixels < limits->min_pixels)
        return FAIL(ST_CONFIG,
                    "a clip has from %" PRId64 " to %" PRId64 " pixels (video.max_pixels)"
                    ": expected 1 <= min <= max",
                    limits->min_pixels, limits->max_pixels);
    if (n_frames < PAIR)
        return FAIL(ST_BAD_INPUT, "the video has %" PRId64 " frames, expected at least %d",
                    n_frames, PAIR);
    if (height < FACTOR || width < FACTOR || height > MAX_SIDE || width > MAX_SIDE)
        return FAIL(ST_BAD_INPUT,
                    "the frames of the video have %" PRId64 " x %" PRId64 " pixels, expected sides "
                    "from %d to %d",
                    width, height, FACTOR, MAX_SIDE);
    if (n_frames > MAX_VOLUME / (height * width))
        return FAIL(ST_BAD_INPUT,
                    "the video has %" PRId64 " frames of %" PRId64 " x %" PRId64
                    " pixels, which is too large",
                    n_frames, width, height);
    const int64_t longer = height > width ? height : width;
    const int64_t shorter = height > width ? width : height;
    if (longer > MAX_ASPECT * shorter)
        return FAIL(ST_BAD_INPUT,
                    "the frames of the video have %" PRId64 " x %" PRId64
                    " pixels: one side is more than %d times the other",
                    width, height, MAX_ASPECT);
    return ST_OK;
}

/* The grid for these areas: smart_resize of a video. Fails if the sides do not fit an int32. */
static status round_to_grid(int64_t n_frames, int64_t height, int64_t width, int64_t min_pixels,
                            int64_t max_pixels, fit_grid *out)
{
    const double real_height = (double)height, real_width = (double)width;
    const double volume = (double)(n_frames * height * width);
    double to_h = nearbyint(real_height / FACTOR) * FACTOR;
    double to_w = nearbyint(real_width / FACTOR) * FACTOR;
    /* Half to even here too, so that 5 frames count as 4 and 7 as 8. Only the limits use this
     * number. */
    const double to_t = nearbyint((double)n_frames / PAIR) * PAIR;
    if (to_t * to_h * to_w > (double)max_pixels) {
        const double beta = sqrt(volume / (double)max_pixels);
        to_h = fmax(FACTOR, floor(real_height / beta / FACTOR) * FACTOR);
        to_w = fmax(FACTOR, floor(real_width / beta / FACTOR) * FACTOR);
    } else if (to_t * to_h * to_w < (double)min_pixels) {
        const double beta = sqrt((double)min_pixels / volume);
        to_h = ceil(real_height * beta / FACTOR) * FACTOR;
        to_w = ceil(real_width * beta / FACTOR) * FACTOR;
    }
    if (to_h > INT32_MAX || to_w > INT32_MAX || clip_pairs(n_frames) > INT32_MAX)
        return FAIL(ST_BAD_INPUT,
                    "the video would have %" PRId64 " frames of %g x %g pixels, which is too large",
                    n_frames, to_w, to_h);
    *out = (fit_grid){.height = (int32_t)to_h,
                      .width = (int32_t)to_w,
                      .rows = (int32_t)to_h / PATCH_SIDE,
                      .columns = (int32_t)to_w / PATCH_SIDE,
                      .pairs = (int32_t)clip_pairs(n_frames)};
    return ST_OK;
}

status clip_fit(int64_t n_frames, int64_t height, int64_t width, const clip_limits *limits,
                fit_grid *out)
{
    TRY(check_frames(n_frames, height, width, limits));
    return round_to_grid(n_frames, height, width, limits->min_pixels, limits->max_pixels, out);
}

status clip_shrink(int64_t n_frames, int64_t height, int64_t width, const clip_limits *limits,
                   int64_t patches, fit_grid *out)
{
    fit_grid grid;
    TRY(clip_fit(n_frames, height, width, limits, &grid));
    const int64_t least = clip_pairs(n_frames) * MERGE_SIDE * MERGE_SIDE;
    if (fit_patches(grid) > patches && patches < least)
        return FAIL(ST_BAD_INPUT,
                    "%" PRId64 " frames of a video have at least %" PRId64
                    " patches, but there is room for %" PRId64
                    ": lower video.max_frames or video.fps",
                    n_frames, least, patches);
    /* A bisection, as in fit_shrink: patches rise with the maximum on either side of the rounded
     * area, which is tried first. `low` fits, `high` does not. */
    int64_t low = 1, high = limits->max_pixels;
    const int64_t border =
        (int64_t)(nearbyint((double)n_frames / PAIR) * PAIR * nearbyint((double)height / FACTOR) *
                  FACTOR * nearbyint((double)width / FACTOR) * FACTOR);
    bool at_border = border >= 1 && border < high;
    while (fit_patches(grid) > patches && high - low > 1) {
        const int64_t middle = at_border ? border : low + (high - low) / 2;
        fit_grid tried;
        at_border = false;
        TRY(round_to_grid(n_frames, height, width,
                          limits->min_pixels < middle ? limits->min_pixels : middle, middle,
                          &tried));
        if (fit_patches(tried) <= patches)
            low = middle;
        else
            high = middle;
    }
    if (fit_patches(grid) > patches)
        TRY(round_to_grid(n_frames, height, width,
                          limits->min_pixels < low ? limits->min_pixels : low, low, &grid));
    assert(fit_patches(grid) <= patches);
    *out = grid;
    return ST_OK;
}

double clip_seconds(const int64_t *index, int64_t count, int64_t pair, double fps)
{
    assert(pair >= 0 && pair < clip_pairs(count));
    const int64_t first = pair * PAIR, second = first + 1 < count ? first + 1 : first;
    fps = known_rate(fps);
    return ((double)index[first] / fps + (double)index[second] / fps) / PAIR;
}

int clip_text(double seconds, char out[CLIP_TEXT])
{
    const int length = snprintf(out, CLIP_TEXT, "<%.1f seconds>", seconds);
    assert(length > 0 && length < CLIP_TEXT);
    return length;
}
