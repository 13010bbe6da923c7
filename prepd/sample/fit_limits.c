/* The processors' files, of pictures and of videos; apart from fit.c and clip.c, which are
 * arithmetic alone. */
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
    CLASS_MIN_PIXELS = 3136,       /* what the reference's class takes from a file without sizes */
    CLASS_MAX_PIXELS = 1003520,
    CLASS_CLIP_MIN_PIXELS = 128 * 32 * 32, /* the same of videos: areas times frames */
    CLASS_CLIP_MAX_PIXELS = 768 * 32 * 32,
    BICUBIC = 3, /* Pillow's number of the filter */
};

static const double REAL_TOLERANCE = 1e-9; /* of numbers written in decimal */

/* An integer member that may be absent or null: then *out stays. */
static status optional_int(const json_value *object, const char *key, const char *path,
                           int64_t *out)
{
    const json_value *v = json_find(object, key);
    if (!v || json_typeof(v) == JSON_NULL)
        return ST_OK;
    return json_want_int(object, key, path, out);
}

/* Other sides would need other patches than the wire carries. */
static status require_int(const json_value *object, const char *key, const char *path,
                          int64_t wanted)
{
    int64_t found = wanted;
    TRY(optional_int(object, key, path, &found));
    if (found != wanted)
        return FAIL_IN(ST_BAD_INPUT, path,
                       "%s is %" PRId64 ", only %" PRId64 " is supported (Qwen3-VL)", key, found,
                       wanted);
    return ST_OK;
}

/* Keys for which the reference's class has other values of its own: a file must say them. */
static status require_key(const json_value *object, const char *key, const char *path,
                          const char *otherwise)
{
    const json_value *v = json_find(object, key);
    if (v && json_typeof(v) != JSON_NULL)
        return ST_OK;
    return FAIL_IN(ST_BAD_INPUT, path,
                   "%s is missing; the reference would take %s, Qwen3-VL has another: write it",
                   key, otherwise);
}

/* A number, or one per channel; absent or null passes. */
static status require_real(const json_value *object, const char *key, const char *path,
                           double wanted)
{
    const json_value *v = json_find(object, key);
    if (!v || json_typeof(v) == JSON_NULL)
        return ST_OK;
    const bool list = json_typeof(v) == JSON_ARRAY;
    const size_t n = list ? json_count(v) : 1;
    bool good = !list || n == 3;
    for (size_t i = 0; i < n && good; i++)
        good = fabs(json_real(list ? json_item(v, i) : v, NAN) - wanted) < REAL_TOLERANCE;
    if (!good)
        return FAIL_IN(ST_BAD_INPUT, path, "%s is not %.8g, the only value supported (Qwen3-VL)",
                       key, wanted);
    return ST_OK;
}

/* What the reference would do otherwise than we do: pixels leave here as bytes, and the trainer
 * takes them for (byte / 255 - 0.5) / 0.5. */
static status check_steps(const json_value *file, const char *path)
{
    static const char *const steps[] = {"do_resize", "do_rescale", "do_normalize",
                                        "do_convert_rgb"};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        if (!json_bool(json_find(file, steps[i]), true))
            return FAIL_IN(ST_BAD_INPUT, path, "%s is false, only true is supported (Qwen3-VL)",
                           steps[i]);
    TRY(require_int(file, "resample", path, BICUBIC));
    TRY(require_real(file, "rescale_factor", path, 1.0 / 255.0));
    TRY(require_real(file, "image_mean", path, 0.5));
    return require_real(file, "image_std", path, 0.5);
}

/* limits: those of the reference's class, for a file that does not say. */
static status read_file(const json_value *file, const char *path, fit_limits *limits)
{
    if (json_typeof(file) != JSON_OBJECT)
        return FAIL_IN(ST_BAD_INPUT, path, "expected an object, found %s",
                       json_type_name(json_typeof(file)));
    TRY(require_int(file, "patch_size", path, PATCH_SIDE));
    TRY(require_int(file, "merge_size", path, MERGE_SIDE));
    TRY(require_int(file, "temporal_patch_size", path, 2));
    TRY(check_steps(file, path));

    /* "edges" are areas in this processor; older files say min_pixels and max_pixels. */
    const json_value *size = json_find(file, "size");
    if (size && json_typeof(size) != JSON_NULL) {
        TRY(json_want_int(size, "shortest_edge", path, &limits->min_pixels));
        TRY(json_want_int(size, "longest_edge", path, &limits->max_pixels));
    }
    TRY(optional_int(file, "min_pixels", path, &limits->min_pixels));
    TRY(optional_int(file, "max_pixels", path, &limits->max_pixels));
    if (limits->min_pixels < 1 || limits->max_pixels < limits->min_pixels)
        return FAIL_IN(ST_BAD_INPUT, path,
                       "areas from %" PRId64 " to %" PRId64 " pixels, expected 1 <= min <= max",
                       limits->min_pixels, limits->max_pixels);
    return ST_OK;
}

/* The file of that name in the model's folder, the one that model_files.h digests for HELLO; *out
 * NULL: there is none. */
static status load_file(const conf *c, const char *name, char path[STATUS_PATH_MAX],
                        json_value **out)
{
    const char *folder = c->model_tokenizer[0] ? c->model_tokenizer : c->model_path;
    *out = NULL;
    if (snprintf(path, STATUS_PATH_MAX, "%s/%s", folder, name) >= STATUS_PATH_MAX)
        return FAIL(ST_CONFIG, "model.path is longer than %d bytes", STATUS_PATH_MAX);
    return folder[0] && access(path, F_OK) == 0 ? json_load(path, out) : ST_OK;
}

/* Qwen3-VL's values, where the class of the pictures' processor has others of its own. */
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
                       "do_sample_frames is false, only true is supported (Qwen3-VL)");
    TRY(optional_int(file, "min_frames", path, &limits->min_frames));
    TRY(optional_int(file, "max_frames", path, &limits->max_frames));
    if (fps && json_typeof(fps) != JSON_NULL)
        limits->fps = json_real(fps, -1);
    if (limits->min_frames < 1 || limits->max_frames < limits->min_frames || !(limits->fps > 0))
        return FAIL_IN(ST_BAD_INPUT, path,
                       "from %" PRId64 " to %" PRId64 " frames at %g per second: expected 1 <= min "
                       "<= max and a positive rate",
                       limits->min_frames, limits->max_frames, limits->fps);
    return ST_OK;
}

status clip_limits_load(const conf *c, clip_limits *out)
{
    clip_limits limits = clip_published;
    char path[STATUS_PATH_MAX];
    json_value *file;
    TRY(load_file(c, "video_preprocessor_config.json", path, &file));
    const status st = file ? read_clip_file(file, path, &limits) : ST_OK;
    json_free(&file);
    TRY(st);
    if (c->video_min_pixels > 0)
        limits.min_pixels = c->video_min_pixels;
    if (c->video_max_pixels > 0)
        limits.max_pixels = c->video_max_pixels;
    if (c->video_min_frames > 0)
        limits.min_frames = c->video_min_frames;
    if (c->video_max_frames > 0)
        limits.max_frames = c->video_max_frames;
    if (c->video_fps > 0)
        limits.fps = c->video_fps;
    if (limits.max_pixels < limits.min_pixels || limits.max_frames < limits.min_frames)
        return FAIL(ST_CONFIG,
                    "video: areas from %" PRId64 " to %" PRId64 " pixels and from %" PRId64
                    " to %" PRId64 " frames: expected min <= max (a value not set comes from "
                    "video_preprocessor_config.json)",
                    limits.min_pixels, limits.max_pixels, limits.min_frames, limits.max_frames);
    *out = limits;
    return ST_OK;
}

status fit_limits_load(const conf *c, fit_limits *out)
{
    fit_limits limits = {CLASS_MIN_PIXELS, CLASS_MAX_PIXELS};
    char path[STATUS_PATH_MAX];
    json_value *file;
    TRY(load_file(c, "preprocessor_config.json", path, &file));
    status st = ST_OK;
    if (!file)
        limits = (fit_limits){DEFAULT_MIN_PIXELS, DEFAULT_MAX_PIXELS};
    else if ((st = read_file(file, path, &limits)) == ST_OK)
        st = require_keys(file, path);
    json_free(&file);
    TRY(st);
    if (c->image_min_pixels > 0)
        limits.min_pixels = c->image_min_pixels;
    if (c->image_max_pixels > 0)
        limits.max_pixels = c->image_max_pixels;
    if (limits.max_pixels < limits.min_pixels)
        return FAIL(ST_CONFIG,
                    "image.min_pixels %" PRId64 " is above image.max_pixels %" PRId64
                    " (a value not set comes from preprocessor_config.json)",
                    limits.min_pixels, limits.max_pixels);
    *out = limits;
    return ST_OK;
}
