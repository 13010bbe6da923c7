/* model_cache.h: models by their published name, "Org/Name", in the cache that Hugging Face's tools
 * keep: ROOT/models--Org--Name/snapshots/COMMIT/, COMMIT as refs/main says, files as links to
 * blobs.
 *
 * ROOT is, as those tools choose it: HF_HUB_CACHE, else HF_HOME/hub, else
 * XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub. Nothing is ever downloaded. */
#ifndef TESSERA_COMMON_BASE_MODEL_CACHE_H
#define TESSERA_COMMON_BASE_MODEL_CACHE_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"

/* Two words with one slash, of the letters that the hub allows. */
bool model_cache_is_name(const char *name);
/* The folder of name's main snapshot in out; false, out untouched, if it is not there. */
bool model_cache_find(const char *name, char out[STATUS_PATH_MAX]);
/* What to call the model of a folder: Org/Name of a snapshot in the cache, else the last word. */
void model_cache_title(const char *folder, char out[STATUS_PATH_MAX]);
/* Where model_cache_find looked for name and what was not there, in words. */
void model_cache_explain(const char *name, char *out, size_t size);

#endif
