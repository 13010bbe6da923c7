/* fit.c: the arithmetic of fit.h. */
#include "prepd/sample/fit.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>

#include "proto/batch.h"

enum {
    FACTOR = PATCH_SIDE * MERGE_SIDE, /* pixels on a side of a merged token */
    MAX_ASPECT = 200,                 /* the bound of transformers, beyond which it refuses */
    MAX_SIDE = 1 << 24,               /* so that areas are exact in a double */
};

/* The three steps of smart_resize. Doubles and the order of operations are those of the Python
 * code: real_height / beta / 32 is two divisions, and rounding is half to even (nearbyint in the
 * default mode). */
static fit_grid round_to_grid(int64_t height, int64_t width, int64_t min_pixels, int64_t max_pixels)
{
    const double real_height = (double)height, real_width = (double)width;
    double to_h = nearbyint(real_height / FACTOR) * FACTOR; /* this may be 0 here */
    double to_w = nearbyint(real_width / FACTOR) * FACTOR;

    if (to_h * to_w > (double)max_pixels) {
        const double beta = sqrt(real_height * real_width / (double)max_pixels);
        to_h = fmax(FACTOR, floor(real_height / beta / FACTOR) * FACTOR);
        to_w = fmax(FACTOR, floor(real_width / beta / FACTOR) * FACTOR);
    } else if (to_h * to_w < (double)min_pixels) {
        const double beta = sqrt((double)min_pixels / (real_height * real_width));
        to_h = ceil(real_height * beta / FACTOR) * FACTOR;
        to_w = ceil(real_width * beta / FACTOR) * FACTOR;
    }
    return (fit_grid){.height = (int32_t)to_h,
                      .width = (int32_t)to_w,
                      .rows = (int32_t)to_h / PATCH_SIDE,
                      .columns = (int32_t)to_w / PATCH_SIDE};
}

static status check_input(int64_t height, int64_t width, fit_limits limits)
{
    if (limits.min_pixels < 1 || limits.max_pixels < limits.min_pixels)
        return FAIL(ST_CONFIG,
                    "image.min_pixels is %" PRId64 " and image.max_pixels %" PRId64
                    ": expected 1 <= min <= max",
                    limits.min_pixels, limits.max_pixels);
    if (height < 1 || width < 1 || height > MAX_SIDE || width > MAX_SIDE)
        return FAIL(ST_BAD_INPUT,
                    "the picture has %" PRId64 " x %" PRId64 " pixels, expected sides from 1 to %d",
                    width, height, MAX_SIDE);
    const int64_t longer = height > width ? height : width;
    const int64_t shorter = height > width ? width : height;
    if (longer > MAX_ASPECT * shorter)
        return FAIL(ST_BAD_INPUT,
                    "the picture has %" PRId64 " x %" PRId64
                    " pixels: one side is more than %d times the other",
                    width, height, MAX_ASPECT);
    return ST_OK;
}

status fit_image(int64_t height, int64_t width, fit_limits limits, fit_grid *out)
{
    TRY(check_input(height, width, limits));
    /* A larger maximum would change nothing, but sides could overflow an int32. */
    const int64_t most = (int64_t)1 << 40;
    const int64_t max_pixels = limits.max_pixels < most ? limits.max_pixels : most;
    const int64_t min_pixels = limits.min_pixels < most ? limits.min_pixels : most;
    *out = round_to_grid(height, width, min_pixels, max_pixels);
    return ST_OK;
}

/* The grid for a maximum that may be below the configured minimum; then the minimum is the same. */
static fit_grid grid_at(int64_t height, int64_t width, int64_t min_pixels, int64_t max_pixels)
{
    return round_to_grid(height, width, min_pixels < max_pixels ? min_pixels : max_pixels,
                         max_pixels);
}

status fit_shrink(int64_t height, int64_t width, fit_limits limits, int64_t patches, fit_grid *out)
{
    fit_grid grid;
    TRY(fit_image(height, width, limits, &grid));
    if (fit_patches(grid) <= patches) {
        *out = grid;
        return ST_OK;
    }
    if (patches < MERGE_SIDE * MERGE_SIDE)
        return FAIL(ST_BAD_INPUT,
                    "there is room for %" PRId64 " patches, but the smallest picture has %d",
                    patches, MERGE_SIDE * MERGE_SIDE);

    /* The number of patches rises with max_pixels below the rounded area, and again from there on,
     * but not across that border: a side that stays at 32 pixels can make the shrunk grid the
     * larger one. So the border is tried first, and the bisection stays on one side of it. `low`
     * fits, `high` does not. */
    fit_grid rounded = round_to_grid(height, width, 0, INT64_MAX);
    int64_t border = (int64_t)rounded.height * rounded.width;
    int64_t low = 1, high = limits.max_pixels;
    if (border >= 1 && border < high) {
        if (fit_patches(grid_at(height, width, limits.min_pixels, border)) <= patches)
            low = border;
        else
            high = border;
    }
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (fit_patches(grid_at(height, width, limits.min_pixels, middle)) <= patches)
            low = middle;
        else
            high = middle;
    }
    grid = grid_at(height, width, limits.min_pixels, low);
    assert(fit_patches(grid) <= patches); /* with 1 pixel the grid is 32 x 32 */
    *out = grid;
    return ST_OK;
}
