/* fit_limits.c: reads preprocessor_config.json and video_preprocessor_config.json of the model
 * folder, and refuses a processor that does anything else than fit.c, clip.c and resample.c do. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "common/json/json.h"
#include "prepd/sample/clip.h"
#include "prepd/sample/fit.h"
#include "proto/batch.h"

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

/* Reads a file of either kind.
 * *limits are those of the class, and stay for a file that gives none. */
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

/* Checks that the keys are given for which the class of the pictures' processor has other
 * defaults. */
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
