/* The processor's file; apart from fit.c, which is arithmetic alone. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "common/json.h"
#include "prepd/sample/fit.h"
#include "proto/batch.h"

enum {
    DEFAULT_MIN_PIXELS = 65536,    /* 256 x 256, as published */
    DEFAULT_MAX_PIXELS = 16777216, /* 4096 x 4096 */
    CLASS_MIN_PIXELS = 3136,       /* what the reference's class takes from a file without sizes */
    CLASS_MAX_PIXELS = 1003520,
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
    TRY(require_key(file, "image_mean", path, "0.48145466, 0.4578275, 0.40821073"));
    TRY(require_key(file, "image_std", path, "0.26862954, 0.26130258, 0.27577711"));
    TRY(require_real(file, "image_mean", path, 0.5));
    return require_real(file, "image_std", path, 0.5);
}

static status read_file(const json_value *file, const char *path, fit_limits *limits)
{
    if (json_typeof(file) != JSON_OBJECT)
        return FAIL_IN(ST_BAD_INPUT, path, "expected an object, found %s",
                       json_type_name(json_typeof(file)));
    TRY(require_key(file, "patch_size", path, "14"));
    TRY(require_int(file, "patch_size", path, PATCH_SIDE));
    TRY(require_int(file, "merge_size", path, MERGE_SIDE));
    TRY(require_int(file, "temporal_patch_size", path, 2));
    TRY(check_steps(file, path));

    /* "edges" are areas in this processor; older files say min_pixels and max_pixels. */
    const json_value *size = json_find(file, "size");
    *limits = (fit_limits){CLASS_MIN_PIXELS, CLASS_MAX_PIXELS};
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

status fit_limits_load(const conf *c, fit_limits *out)
{
    fit_limits limits = {DEFAULT_MIN_PIXELS, DEFAULT_MAX_PIXELS};
    /* The folder that model_files.h digests for HELLO. */
    const char *folder = c->model_tokenizer[0] ? c->model_tokenizer : c->model_path;
    char path[STATUS_PATH_MAX];
    if (snprintf(path, sizeof path, "%s/preprocessor_config.json", folder) >= (int)sizeof path)
        return FAIL(ST_CONFIG, "model.path is longer than %d bytes", STATUS_PATH_MAX);
    if (folder[0] && access(path, F_OK) == 0) {
        json_value *file = NULL;
        TRY(json_load(path, &file));
        const status st = read_file(file, path, &limits);
        json_free(&file);
        TRY(st);
    }
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
