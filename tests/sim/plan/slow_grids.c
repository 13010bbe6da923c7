/* SPDX-License-Identifier: Apache-2.0 */
/* slow_grids.c: how many patches a picture or a clip becomes (prepd/sample/fit.h, clip.h), with the
 * limits as published or those of the options. */
#include <math.h>

#include "tests/sim/plan/slow_parts.h"

static const double SIDE = 32, PATCH = 16, ASPECT = 200;

typedef struct limits {
    double least, most; /* pixels, of all frames of a clip */
} limits;

static int64_t set_or(int64_t option, int64_t otherwise)
{
    return option > 0 ? option : otherwise;
}

static limits limits_of(const slow_picture *picture, const conf *options)
{
    if (picture->frames > 0)
        return (limits){4096, (double)set_or(options->video_max_pixels, 25165824)};
    return (limits){(double)set_or(options->image_min_pixels, 65536),
                    (double)set_or(options->image_max_pixels, 16777216)};
}

static int64_t count_frames(const slow_picture *clip, const conf *options)
{
    const double rate = options->video_fps > 0 ? options->video_fps : 2,
                 own = clip->fps > 0 ? clip->fps : 24, wanted = (double)clip->frames / own * rate;
    const int64_t most = set_or(options->video_max_frames, 768), least = 4;
    int64_t count = slow_least((int64_t)wanted, most);
    count = count < least ? slow_least(least, most) : count;
    return slow_least(count, clip->frames);
}

int64_t slow_frames(const slow_picture *clip, const conf *options, int64_t *out)
{
    const int64_t count = count_frames(clip, options);
    const double step = count > 1 ? (double)(clip->frames - 1) / (double)(count - 1) : 0;
    for (int64_t i = 0; i < count; i++)
        out[i] = i > 0 && i == count - 1 ? clip->frames - 1 : (int64_t)nearbyint((double)i * step);
    return count;
}

/* smart_resize of transformers. count: frames that are taken; 1 for a picture. */
static slow_grid resize(const slow_picture *picture, int64_t count, limits within)
{
    const double height = (double)picture->height, width = (double)picture->width;
    const double even = picture->frames > 0 ? nearbyint((double)count / 2) * 2 : 1;
    double high = nearbyint(height / SIDE) * SIDE, wide = nearbyint(width / SIDE) * SIDE;
    if (even * high * wide > within.most) {
        const double beta = sqrt((double)count * height * width / within.most);
        high = fmax(SIDE, floor(height / beta / SIDE) * SIDE);
        wide = fmax(SIDE, floor(width / beta / SIDE) * SIDE);
    } else if (even * high * wide < within.least) {
        const double beta = sqrt(within.least / ((double)count * height * width));
        high = ceil(height * beta / SIDE) * SIDE;
        wide = ceil(width * beta / SIDE) * SIDE;
    }
    return (slow_grid){(int64_t)(high / PATCH), (int64_t)(wide / PATCH),
                       picture->frames > 0 ? (count + 1) / 2 : 0};
}

int64_t slow_patches(slow_grid grid)
{
    return grid.rows * grid.columns * (grid.pairs > 0 ? grid.pairs : 1);
}

static bool has_shape(const slow_picture *picture, int64_t count)
{
    const double longer = fmax((double)picture->height, (double)picture->width),
                 shorter = fmin((double)picture->height, (double)picture->width);
    return shorter >= (picture->frames > 0 ? SIDE : 1) && longer <= ASPECT * shorter &&
           (picture->frames == 0 || count >= 2);
}

/* The grid of the largest maximum in [from, to] that has at most `room` patches; false if none has.
 * Patches rise with the maximum there. */
static bool largest_in(const slow_picture *picture, int64_t count, double least, int64_t from,
                       int64_t to, int64_t room, slow_grid *out)
{
    bool any = false;
    while (from <= to) {
        const int64_t middle = from + (to - from) / 2;
        const slow_grid tried =
            resize(picture, count, (limits){fmin(least, (double)middle), (double)middle});
        if (slow_patches(tried) <= room) {
            *out = tried;
            any = true;
            from = middle + 1;
        } else {
            to = middle - 1;
        }
    }
    return any;
}

bool slow_grid_of(const slow_picture *picture, const conf *options, int64_t room, slow_grid *out)
{
    const limits within = limits_of(picture, options);
    const int64_t count = picture->frames > 0 ? count_frames(picture, options) : 1,
                  most = (int64_t)within.most;
    if (!has_shape(picture, count))
        return false;
    *out = resize(picture, count, within);
    if (slow_patches(*out) <= room)
        return true;
    /* Above the area that the sides have once they are rounded, nothing is made smaller. */
    const double even = picture->frames > 0 ? nearbyint((double)count / 2) * 2 : 1,
                 area = even * nearbyint((double)picture->height / SIDE) * SIDE *
                        nearbyint((double)picture->width / SIDE) * SIDE;
    const int64_t border = slow_least(most, (int64_t)fmax(area, 1));
    return largest_in(picture, count, within.least, border, most, room, out) ||
           largest_in(picture, count, within.least, 1, border - 1, room, out);
}
