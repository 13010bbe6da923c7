/* model_files.h: where a configuration's tokenizer and processor settings lie, and the digest both
 * programs compare in HELLO: folders may be mounted elsewhere, the bytes must agree. */
#ifndef TESSERA_COMMON_MODEL_FOLDER_MODEL_FILES_H
#define TESSERA_COMMON_MODEL_FOLDER_MODEL_FILES_H

#include <stdbool.h>

#include "common/conf/conf.h"
#include "common/base/model_cache.h"

/* model.tokenizer, or model.path if that is a folder. ST_CONFIG, with the remedy, beside a preset
 * without model.tokenizer. Borrowed from the conf. */
WARN_UNUSED status model_files_folder(const conf *c, const char **out);

/* The same folder must have a name that workers can be told of, in UTF-8. ST_CONFIG. */
WARN_UNUSED status model_files_told(const conf *c);

/* XXH3-128 over tokenizer.json and, where present, preprocessor_config.json and
 * video_preprocessor_config.json of that folder. */
WARN_UNUSED status model_files_digest(const conf *c, hash128 *out);

/* What a user calls a model -> the folder in out: a folder, or Org/Name in the Hugging Face cache
 * (model_cache.h). Anything else stays as it is: a preset, or a path for
 * its reader to complain of. NO_INPUT for Org/Name that is not there, with where it looked. conf
 * does the same with model.path and model.tokenizer. */
WARN_UNUSED status model_files_find(const char *name, char out[STATUS_PATH_MAX]);
/* Fails with code: path is no folder; names the place in the cache that its last two words would
 * have. */
WARN_UNUSED status model_files_absent(status code, const char *key, const char *path);

#endif
