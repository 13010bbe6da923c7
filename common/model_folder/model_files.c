/* SPDX-License-Identifier: Apache-2.0 */
/* model_files.c: see model_files.h. */
#include "common/model_folder/model_files.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/utf8.h"

/* The last two parts of a path: "Org/Name" of "/here/Org/Name". That is what the user wrote, before
 * conf_load put the working directory in front. */
static const char *last_two_words(const char *path)
{
    const char *at = path + strlen(path);
    for (int slashes = 0; at > path; at--) {
        if (at[-1] == '/' && ++slashes == 2)
            break;
    }
    return at;
}

status model_files_absent(const char *key, const char *path)
{
    char looked[STATUS_PATH_MAX + 64];
    const char *slash = strrchr(path, '/');
    if (slash && strcmp(slash, "/model") == 0)
        return FAIL(ST_NO_INPUT,
                    "%s: %s is not a folder; prepd synth --out %.*s makes it, a small model with "
                    "pictures to train on; otherwise correct the path, or download the model (hf "
                    "download Org/Name)",
                    key, path, (int)(slash - path), path);
    model_cache_explain(last_two_words(path), looked, sizeof looked);
    return FAIL(ST_NO_INPUT,
                "%s: %s is not a folder, and %s; correct the path, or download the model (hf "
                "download Org/Name)",
                key, path, looked);
}

status model_files_find(const char *name, char out[STATUS_PATH_MAX])
{
    if (!file_is_folder(name)) {
        if (model_cache_find(name, out))
            return ST_OK;
        if (model_cache_is_name(name))
            return model_files_absent("model", name);
    }
    if (snprintf(out, STATUS_PATH_MAX, "%s", name) >= STATUS_PATH_MAX)
        return FAIL(ST_USAGE, "the model's path is longer than %d bytes", STATUS_PATH_MAX - 1);
    return ST_OK;
}

status model_files_folder(const conf *options, const char **out)
{
    *out = NULL;
    if (options->model_tokenizer[0]) {
        if (!file_is_folder(options->model_tokenizer))
            return model_files_absent("model.tokenizer", options->model_tokenizer);
        *out = options->model_tokenizer;
        return ST_OK;
    }
    if (!options->model_path[0])
        return FAIL_IN(ST_CONFIG, conf_place(options),
                       "model.path is not set: name a Hugging Face folder, or a preset and "
                       "model.tokenizer");
    if (!file_is_folder(options->model_path) && strchr(options->model_path, '/'))
        return model_files_absent("model.path", options->model_path);
    if (!file_is_folder(options->model_path))
        return FAIL_IN(
            ST_NO_INPUT, conf_place(options),
            "model.path %s is not a folder; if it is the name of a preset, set model.tokenizer to "
            "the folder of tokenizer.json",
            options->model_path);
    *out = options->model_path;
    return ST_OK;
}

status model_files_told(const conf *options)
{
    const char *folder;
    TRY(model_files_folder(options, &folder));
    if (utf8_valid(folder, strlen(folder)))
        return ST_OK;
    return FAIL_IN(ST_CONFIG, folder,
                   "%s: the folder's name is not UTF-8, so it cannot be sent to workers: rename "
                   "the folder, or name a link to it",
                   folder == options->model_path ? "model.path" : "model.tokenizer");
}

static status add_file(hasher *hash, const char *folder, const char *name, bool required)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return FAIL_IN(ST_CONFIG, folder, "the path of its %s is longer than %d bytes", name,
                       PATH_MAX - 1);
    if (!required && access(path, F_OK) != 0)
        return errno == ENOENT ? ST_OK : FAIL_IN(ST_IO, path, "%s", strerror(errno));
    hash128 file;
    TRY(hash_file(path, &file));
    hasher_add_text(hash, name);
    hasher_add(hash, file.bytes, sizeof file.bytes);
    return ST_OK;
}

status model_files_digest(const conf *options, hash128 *out)
{
    status st = ST_OK;
    const char *folder;
    hasher *hash = NULL;
    TRY(model_files_folder(options, &folder));
    TRY(hasher_new(&hash));
    TRY_OR(done, add_file(hash, folder, "tokenizer.json", true));
    TRY_OR(done, add_file(hash, folder, "preprocessor_config.json", false));
    TRY_OR(done, add_file(hash, folder, "video_preprocessor_config.json", false));
    *out = hasher_value(hash);
done:
    hasher_free(&hash);
    return st;
}
