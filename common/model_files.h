/* model_files.h: where a configuration's tokenizer and processor settings lie, and the digest both
 * programs compare in HELLO: folders may be mounted elsewhere, the bytes must agree. */
#ifndef TESSERA_COMMON_MODEL_FILES_H
#define TESSERA_COMMON_MODEL_FILES_H

#include <stdbool.h>

#include "common/conf.h"

/* model.tokenizer, or model.path if that is a folder. ST_CONFIG, with the remedy, beside a preset
 * without model.tokenizer. Borrowed from the conf. */
WARN_UNUSED status model_files_folder(const conf *c, const char **out);

/* XXH3-128 over tokenizer.json and, where present, preprocessor_config.json and
 * video_preprocessor_config.json of that folder. */
WARN_UNUSED status model_files_digest(const conf *c, hash128 *out);

bool model_files_is_folder(const char *path);

#endif
