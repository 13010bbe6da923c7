/* SPDX-License-Identifier: Apache-2.0 */
/* hf_folder.h: the tensors of a Hugging Face model folder, by name.
 *
 * They are in model.safetensors or else in the shards that model.safetensors.index.json names;
 * transformers looks in the same order (modeling_utils.py). Files stay mapped read-only until
 * hf_folder_close, so they may be larger than memory. */
#ifndef TESSERA_TRAINER_MODEL_DIMS_HF_FOLDER_H
#define TESSERA_TRAINER_MODEL_DIMS_HF_FOLDER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/json/json.h"
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

/* ---- whether the output head is tied, that is, uses the embedding's weights ----
 *
 * Versions of transformers look for tie_word_embeddings in different places of config.json, so it
 * also depends on whether lm_head.weight is stored (tests/golden/heads.json has each version):
 *
 *   stored      The head is tied only if the top level says so and the stored head equals the
 *               embedding, as in 5.24. 4.57 drops a stored head that differs where text_config
 *               says tied.
 *   not stored  The head is tied if the top level (5.24) or text_config (4.57) says so. If neither
 *               does it is untied, and loading fails for want of lm_head.weight.
 *   no weights  The top level decides, as in 5.24, which writes "true" into every text_config of
 *               qwen3_vl_moe that says nothing, and does not read it. */

/* What the two places of tie_word_embeddings say. In a text-only model they are the same place. */
typedef struct head_ties {
    bool top, text;
} head_ties;

/* Reads both places; a missing one is false. ST_BAD_INPUT for a value that is not a boolean; source
 * names the file in the message. */
WARN_UNUSED status head_read_ties(const json_value *config, const char *source, head_ties *out);
/* Decides for a model folder, with or without weights; its files are opened only where they decide.
 * text_prefix: what names of the text part begin with. Errors: as hf_folder_open. */
WARN_UNUSED status head_is_tied(const head_ties *ties, const char *folder, const char *text_prefix,
                                bool *out);

#endif
