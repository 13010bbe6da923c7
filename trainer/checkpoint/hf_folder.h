/* hf_folder.h: the weights of a Hugging Face folder: model.safetensors, or the shards that
 * model.safetensors.index.json names (spec 2.5). Files are mapped read-only until hf_folder_close.
 */
#ifndef TESSERA_CHECKPOINT_HF_FOLDER_H
#define TESSERA_CHECKPOINT_HF_FOLDER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/safetensors.h"

typedef struct hf_folder {
    st_file *files; /* mapped */
    int64_t n_files;
    const st_tensor **tensors; /* of all files, sorted by name */
    int64_t n_tensors;
} hf_folder;

/* Has the folder any weights? */
bool hf_has_weights(const char *folder);
/* NO_INPUT where there are none; BAD_INPUT by file and tensor: a broken file, a name in two
 * shards, an index that names a file that is not there or does not hold the tensor. */
WARN_UNUSED status hf_folder_open(const char *folder, hf_folder *out);
void hf_folder_close(hf_folder *f);
const st_tensor *hf_folder_find(const hf_folder *f, const char *name); /* NULL if absent */

#endif
