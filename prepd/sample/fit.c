/* SPDX-License-Identifier: Apache-2.0 */
/* fit.c: the arithmetic of fit.h. */
#include "prepd/sample/fit.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "common/json/json.h"
#include "prepd/sample/clip.h"
#include "proto/row/batch.h"

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

/* Reads preprocessor_config.json and video_preprocessor_config.json of the model
 * folder, and refuses a processor that does anything else than fit.c, clip.c and resample.c do. */

enum {
    DEFAULT_MIN_PIXELS = 65536,    /* 256 x 256, as published */
    DEFAULT_MAX_PIXELS = 16777216, /* 4096 x 4096 */
    CLASS_MIN_PIXELS = 3136,       /* what transformers' class takes if a file has no sizes */
    CLASS_MAX_PIXELS = 1003520,
    CLASS_CLIP_MIN_PIXELS = 128 * 32 * 32, /* the same of videos: area times frames */
    CLASS_CLIP_MAX_PIXELS = 768 * 32 * 32,
    BICUBIC = 3, /* the number that Pillow gives this filter */
};

static const double REAL_TOLERANCE = 1e-9; /* for numbers that are written in decimal */

/* Reads an integer member. If it is absent or null, *out stays as it is. */
static status optional_int(const json_value *object, const char *key, const char *path,
                           int64_t *out)
{
    const json_value *value = json_find(object, key);
    if (!value || json_typeof(value) == JSON_NULL)
        return ST_OK;
    return json_want_int(object, key, path, out);
}

/* Checks an integer that, if it is given, must have this value. */
static status require_int(const json_value *object, const char *key, const char *path,
                          int64_t wanted)
{
    int64_t found = wanted;
    TRY(optional_int(object, key, path, &found));
    if (found != wanted)
        return FAIL_IN(ST_BAD_INPUT, path,
                       "%s is %" PRId64 ", but only %" PRId64 " is supported (Qwen3-VL)", key,
                       found, wanted);
    return ST_OK;
}

/* Checks that a key is given. This is for keys whose default in transformers' class is not the
 * value of Qwen3-VL. */
static status require_key(const json_value *object, const char *key, const char *path,
                          const char *otherwise)
{
    const json_value *value = json_find(object, key);
    if (value && json_typeof(value) != JSON_NULL)
        return ST_OK;
    return FAIL_IN(
        ST_BAD_INPUT, path,
        "%s is missing: transformers would take %s, but Qwen3-VL has another value; write it "
        "into the file",
        key, otherwise);
}

/* Checks a number, or one for each channel, that must have this value if it is given. */
static status require_real(const json_value *object, const char *key, const char *path,
                           double wanted)
{
    const json_value *value = json_find(object, key);
    if (!value || json_typeof(value) == JSON_NULL)
        return ST_OK;
    const bool list = json_typeof(value) == JSON_ARRAY;
    const size_t count = list ? json_count(value) : 1;
    bool good = !list || count == 3;
    for (size_t i = 0; i < count && good; i++)
        good = fabs(json_real(list ? json_item(value, i) : value, NAN) - wanted) < REAL_TOLERANCE;
    if (!good)
        return FAIL_IN(ST_BAD_INPUT, path, "%s is not %.8g, the only value supported (Qwen3-VL)",
                       key, wanted);
    return ST_OK;
}

/* Checks the steps that prepd does not read from the file: pixels are sent as bytes, and the
 * trainer always makes (byte / 255 - 0.5) / 0.5 of them. */
static status check_steps(const json_value *file, const char *path)
{
    static const char *const steps[] = {"do_resize", "do_rescale", "do_normalize",
                                        "do_convert_rgb"};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        if (!json_bool(json_find(file, steps[i]), true))
            return FAIL_IN(ST_BAD_INPUT, path, "%s is false, but only true is supported (Qwen3-VL)",
                           steps[i]);
    TRY(require_int(file, "resample", path, BICUBIC));
    TRY(require_real(file, "rescale_factor", path, 1.0 / 255.0));
    TRY(require_real(file, "image_mean", path, 0.5));
    return require_real(file, "image_std", path, 0.5);
}

/* Reads a file of either kind. *limits are those of the class, and stay for a file that gives none.
 */
static status read_file(const json_value *file, const char *path, fit_limits *limits)
{
    if (json_typeof(file) != JSON_OBJECT)
        return FAIL_IN(ST_BAD_INPUT, path, "expected an object, found %s",
                       json_type_name(json_typeof(file)));
    TRY(require_int(file, "patch_size", path, PATCH_SIDE));
    TRY(require_int(file, "merge_size", path, MERGE_SIDE));
    TRY(require_int(file, "temporal_patch_size", path, 2));
    TRY(check_steps(file, path));

    /* The "edges" are areas in this processor. Older files have min_pixels and max_pixels. */
    const json_value *size = json_find(file, "size");
    if (size && json_typeof(size) != JSON_NULL) {
        TRY(json_want_int(size, "shortest_edge", path, &limits->min_pixels));
        TRY(json_want_int(size, "longest_edge", path, &limits->max_pixels));
    }
    TRY(optional_int(file, "min_pixels", path, &limits->min_pixels));
    TRY(optional_int(file, "max_pixels", path, &limits->max_pixels));
    if (limits->min_pixels < 1 || limits->max_pixels < limits->min_pixels)
        return FAIL_IN(ST_BAD_INPUT, path,
                       "the areas go from %" PRId64 " to %" PRId64
                       " pixels, expected 1 <= min <= max",
                       limits->min_pixels, limits->max_pixels);
    return ST_OK;
}

/* Loads the file of that name from the model folder; *out is NULL if there is none. It is the same
 * file that model_files.h digests, so a worker with another one is refused. */
static status load_file(const conf *options, const char *name, char path[STATUS_PATH_MAX],
                        json_value **out)
{
    const char *folder =
        options->model_tokenizer[0] ? options->model_tokenizer : options->model_path;
    *out = NULL;
    if (snprintf(path, STATUS_PATH_MAX, "%s/%s", folder, name) >= STATUS_PATH_MAX)
        return FAIL(ST_CONFIG, "model.path is longer than %d bytes", STATUS_PATH_MAX);
    return folder[0] && access(path, F_OK) == 0 ? json_load(path, out) : ST_OK;
}

/* Checks that the keys are given for which the class of the pictures' processor has other defaults.
 */
static status require_keys(const json_value *file, const char *path)
{
    TRY(require_key(file, "patch_size", path, "14"));
    TRY(require_key(file, "image_mean", path, "0.48145466, 0.4578275, 0.40821073"));
    return require_key(file, "image_std", path, "0.26862954, 0.26130258, 0.27577711");
}

static status read_clip_file(const json_value *file, const char *path, clip_limits *limits)
{
    fit_limits areas = {CLASS_CLIP_MIN_PIXELS, CLASS_CLIP_MAX_PIXELS};
    const json_value *fps = json_find(file, "fps");
    TRY(read_file(file, path, &areas));
    limits->min_pixels = areas.min_pixels;
    limits->max_pixels = areas.max_pixels;
    if (!json_bool(json_find(file, "do_sample_frames"), true))
        return FAIL_IN(ST_BAD_INPUT, path,
                       "do_sample_frames is false, but only true is supported (Qwen3-VL)");
    TRY(optional_int(file, "min_frames", path, &limits->min_frames));
    TRY(optional_int(file, "max_frames", path, &limits->max_frames));
    if (fps && json_typeof(fps) != JSON_NULL)
        limits->fps = json_real(fps, -1);
    if (limits->min_frames < 1 || limits->max_frames < limits->min_frames || !(limits->fps > 0))
        return FAIL_IN(ST_BAD_INPUT, path,
                       "min_frames is %" PRId64 ", max_frames %" PRId64
                       " and fps %g: expected 1 <= min <= "
                       "max and a positive rate",
                       limits->min_frames, limits->max_frames, limits->fps);
    return ST_OK;
}

status clip_limits_load(const conf *options, clip_limits *out)
{
    clip_limits limits = clip_published;
    char path[STATUS_PATH_MAX];
    json_value *file;
    TRY(load_file(options, "video_preprocessor_config.json", path, &file));
    const status st = file ? read_clip_file(file, path, &limits) : ST_OK;
    json_free(&file);
    TRY(st);
    if (options->video_max_pixels > 0)
        limits.max_pixels = options->video_max_pixels;
    if (options->video_max_frames > 0)
        limits.max_frames = options->video_max_frames;
    if (options->video_fps > 0)
        limits.fps = options->video_fps;
    if (limits.max_pixels < limits.min_pixels || limits.max_frames < limits.min_frames)
        return FAIL(ST_CONFIG,
                    "videos may have areas from %" PRId64 " to %" PRId64 " pixels and from %" PRId64
                    " to %" PRId64 " frames: expected min <= max (what video.* does not set comes "
                    "from video_preprocessor_config.json)",
                    limits.min_pixels, limits.max_pixels, limits.min_frames, limits.max_frames);
    *out = limits;
    return ST_OK;
}

status fit_limits_load(const conf *options, fit_limits *out)
{
    fit_limits limits = {CLASS_MIN_PIXELS, CLASS_MAX_PIXELS};
    char path[STATUS_PATH_MAX];
    json_value *file;
    TRY(load_file(options, "preprocessor_config.json", path, &file));
    status st = ST_OK;
    if (!file)
        limits = (fit_limits){DEFAULT_MIN_PIXELS, DEFAULT_MAX_PIXELS};
    else if ((st = read_file(file, path, &limits)) == ST_OK)
        st = require_keys(file, path);
    json_free(&file);
    TRY(st);
    if (options->image_min_pixels > 0)
        limits.min_pixels = options->image_min_pixels;
    if (options->image_max_pixels > 0)
        limits.max_pixels = options->image_max_pixels;
    if (limits.max_pixels < limits.min_pixels)
        return FAIL(ST_CONFIG,
                    "image.min_pixels %" PRId64 " is above image.max_pixels %" PRId64
                    " (what image.* does not set comes from preprocessor_config.json)",
                    limits.min_pixels, limits.max_pixels);
    *out = limits;
    return ST_OK;
}
