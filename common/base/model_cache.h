/* SPDX-License-Identifier: Apache-2.0 */
/* model_cache.h: finds models by their published name, "Org/Name", in the cache that Hugging Face's
 * tools keep. A model lies in ROOT/models--Org--Name/snapshots/COMMIT/, where the file refs/main
 * names COMMIT and the files are links to blobs.
 *
 * ROOT is chosen as those tools choose it: HF_HUB_CACHE, else HF_HOME/hub, else
 * XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub. Nothing is ever downloaded. */
#ifndef TESSERA_COMMON_BASE_MODEL_CACHE_H
#define TESSERA_COMMON_BASE_MODEL_CACHE_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"

/* Whether the text has the form Org/Name, in the characters that the hub allows. */
bool model_cache_is_name(const char *name);
/* Writes the folder of the model's main snapshot to out. Returns false, and leaves out untouched,
 * if the cache has no such model. */
bool model_cache_find(const char *name, char out[STATUS_PATH_MAX]);
/* Writes what to call the model in a folder: Org/Name if the folder is a snapshot in a cache, else
 * the last part of the path. */
void model_cache_title(const char *folder, char out[STATUS_PATH_MAX]);
/* Writes half a sentence that says where model_cache_find looked for the name and what was missing
 * there, for use in a message. */
void model_cache_explain(const char *name, char *out, size_t size);

#endif
