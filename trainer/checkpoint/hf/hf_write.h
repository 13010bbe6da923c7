/* SPDX-License-Identifier: Apache-2.0 */
/* hf_write.h: writes the files of an export. Each is written as NAME.tmp, synced and renamed to
 * NAME, and then its folder is synced. Internal to checkpoint. */
#ifndef TESSERA_TRAINER_CHECKPOINT_HF_WRITE_H
#define TESSERA_TRAINER_CHECKPOINT_HF_WRITE_H

#include <stdio.h>

#include "common/model_folder/safetensors.h"

/* out: "FOLDER/NAME", to read or to write. ST_CONFIG if that is too long for a path. */
WARN_UNUSED status hf_path(char out[STATUS_PATH_MAX], const char *folder, const char *name);
/* Writes a file with this text of `size` bytes. */
WARN_UNUSED status hf_write_text(const char *folder, const char *name, const char *text,
                                 size_t size);
/* Copies from_folder/NAME to folder/NAME. Does nothing if there is no such file or both are the
 * same one. */
WARN_UNUSED status hf_copy_file(const char *from_folder, const char *folder, const char *name);
/* Gives all values of tensor number `index`, in the tensor's own order. */
typedef status (*hf_reader)(void *context, int64_t index, double *out);
/* Writes a safetensors file of tensors list [count], whose values `read` gives. */
WARN_UNUSED status hf_write_values(const char *folder, const char *name, const st_tensor *list,
                                   int64_t count, hf_reader read, void *context);

#endif
