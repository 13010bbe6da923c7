/* SPDX-License-Identifier: Apache-2.0 */
/* model_files.h: finds the folder with a model's tokenizer and processor settings, and makes the
 * digest of these files. Trainer and daemon compare the digest when they connect (HELLO), because
 * the folder can be mounted at another path on each machine, but its bytes must be the same. */
#ifndef TESSERA_COMMON_MODEL_FOLDER_MODEL_FILES_H
#define TESSERA_COMMON_MODEL_FOLDER_MODEL_FILES_H

#include <stdbool.h>

#include "common/conf/conf.h"
#include "common/base/model_cache.h"

/* Gives model.tokenizer, or model.path if that is empty; borrowed from the conf. ST_CONFIG if
 * neither is set; ST_NO_INPUT, with the remedy, if the folder does not exist, or model.path names a
 * preset and model.tokenizer is empty. */
WARN_UNUSED status model_files_folder(const conf *options, const char **out);

/* Checks that the name of this folder is UTF-8, in which it is sent to workers. ST_CONFIG. */
WARN_UNUSED status model_files_told(const conf *options);

/* A hash over this folder's tokenizer.json and, if they exist, preprocessor_config.json and
 * video_preprocessor_config.json. */
WARN_UNUSED status model_files_digest(const conf *options, hash128 *out);

/* Turns the name that a user gives a model into a folder: an existing folder stays as it is, and
 * Org/Name becomes its snapshot in the Hugging Face cache (model_cache.h). ST_NO_INPUT if the cache
 * has no such model; the message says where it looked. Any other name is copied to out unchanged:
 * it is a preset, or a wrong path that the function which opens it will report. conf_load does the
 * same for model.path and model.tokenizer. */
WARN_UNUSED status model_files_find(const char *name, char out[STATUS_PATH_MAX]);
/* Fails with ST_NO_INPUT: the path, which is the value of option `key`, is not a folder. The
 * message also says where the cache would hold a model named by the path's last two parts, or, of a
 * folder named as prepd synth names its model, the command that makes it. */
WARN_UNUSED status model_files_absent(const char *key, const char *path);

#endif
