/* hf_folder.h: the weights of a Hugging Face folder: model.safetensors, else the shards that
 * model.safetensors.index.json names (spec 2.5; the reference looks in this order too). Files are
 * mapped read-only until hf_folder_close, so they may be larger than memory. */
#ifndef TESSERA_TRAINER_MODEL_HF_FOLDER_H
#define TESSERA_TRAINER_MODEL_HF_FOLDER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/model_folder/safetensors.h"

typedef struct hf_folder {
    st_file *files; /* mapped */
    char **names;   /* of the files, [n_files] */
    int64_t n_files;
    const st_tensor **tensors; /* of all files, sorted by name */
    int64_t n_tensors;
} hf_folder;

/* Does the folder say that it has weights? True also for links that lead nowhere (a cache half
 * downloaded): opening it then fails by name. */
bool hf_has_weights(const char *folder);
/* NO_INPUT where there are none, or a file is not there; BAD_INPUT by file and tensor: a broken
 * file, a name in two shards, an index that names a file which does not hold the tensor. */
WARN_UNUSED status hf_folder_open(const char *folder, hf_folder *out);
void hf_folder_close(hf_folder *f);
const st_tensor *hf_folder_find(const hf_folder *f, const char *name); /* NULL if absent */
int64_t hf_folder_file_of(const hf_folder *f, const st_tensor *t);     /* its place in files */

#endif
