/* hf_folder.h: the tensors of a Hugging Face model folder, by name.
 *
 * They are in model.safetensors or else in the shards that model.safetensors.index.json names;
 * transformers looks in the same order (modeling_utils.py). Files stay mapped read-only until
 * hf_folder_close, so they may be larger than memory. */
#ifndef TESSERA_TRAINER_MODEL_HF_FOLDER_H
#define TESSERA_TRAINER_MODEL_HF_FOLDER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/model_folder/safetensors.h"

typedef struct hf_folder {
    st_file *files; /* [n_files], mapped */
    char **names;   /* [n_files] their names */
    int64_t n_files;
    const st_tensor **tensors; /* [n_tensors] of all files, sorted by name */
    int64_t n_tensors;
} hf_folder;

/* True if the folder has a file or link with one of the two names. A link that leads nowhere, as in
 * a half downloaded cache, counts: opening the folder then fails and names the file. */
bool hf_has_weights(const char *folder);
/* Opens and maps all files. ST_NO_INPUT: the folder has no weights, or a file is missing.
 * ST_BAD_INPUT, with the file and the tensor: a broken file, a tensor in two shards, or an index
 * that says a tensor is in a file which does not hold it. */
WARN_UNUSED status hf_folder_open(const char *folder, hf_folder *out);
void hf_folder_close(hf_folder *folder);
const st_tensor *hf_folder_find(const hf_folder *folder, const char *name);  /* NULL if absent */
int64_t hf_folder_file_of(const hf_folder *folder, const st_tensor *tensor); /* index into files */

#endif
