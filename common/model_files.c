#include "common/model_files.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

bool model_files_is_folder(const char *path)
{
    struct stat info;
    return path[0] && stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

status model_files_folder(const conf *c, const char **out)
{
    if (c->model_tokenizer[0]) {
        if (!model_files_is_folder(c->model_tokenizer))
            return FAIL_IN(ST_CONFIG, c->model_tokenizer, "model.tokenizer is no folder");
        *out = c->model_tokenizer;
        return ST_OK;
    }
    if (!c->model_path[0])
        return FAIL(ST_CONFIG, "model.path is not set: name a Hugging Face folder or a preset");
    if (!model_files_is_folder(c->model_path))
        return FAIL(ST_CONFIG,
                    "model.path %s is no folder; beside a preset's name set model.tokenizer to the "
                    "folder of tokenizer.json",
                    c->model_path);
    *out = c->model_path;
    return ST_OK;
}

static status add_file(hasher *h, const char *folder, const char *name, bool required)
{
    char path[STATUS_PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (!required && access(path, F_OK) != 0)
        return ST_OK;
    hash128 file;
    TRY(hash_file(path, &file));
    hasher_add(h, name, __builtin_strlen(name) + 1);
    hasher_add(h, file.bytes, sizeof file.bytes);
    return ST_OK;
}

status model_files_digest(const conf *c, hash128 *out)
{
    status st = ST_OK;
    const char *folder;
    hasher *h = NULL;
    TRY(model_files_folder(c, &folder));
    TRY(hasher_new(&h));
    TRY_OR(done, add_file(h, folder, "tokenizer.json", true));
    TRY_OR(done, add_file(h, folder, "preprocessor_config.json", false));
    TRY_OR(done, add_file(h, folder, "video_preprocessor_config.json", false));
    *out = hasher_value(h);
done:
    hasher_free(&h);
    return st;
}
