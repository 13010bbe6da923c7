/* hf_write.h: files of an export: written as NAME.tmp, synced, renamed. Internal to checkpoint. */
#ifndef TESSERA_TRAINER_CHECKPOINT_HF_WRITE_H
#define TESSERA_TRAINER_CHECKPOINT_HF_WRITE_H

#include <stdio.h>

#include "common/model_folder/safetensors.h"
#include "trainer/model/params.h"

/* folder/name in out, or BAD_INPUT where it is too long. */
WARN_UNUSED status hf_path(char out[STATUS_PATH_MAX], const char *folder, const char *name);
WARN_UNUSED status hf_write_text(const char *folder, const char *name, const char *text,
                                 size_t size);
/* Copies from_folder/name if it exists and is another file. */
WARN_UNUSED status hf_copy_file(const char *from_folder, const char *folder, const char *name);
/* A tensor to write, and where. */
typedef struct hf_item {
    param_piece piece;
    st_dtype dtype;
    int64_t file;  /* of the plan */
    int64_t place; /* within the file, rising */
} hf_item;

/* The header of a file of these tensors; heap. */
WARN_UNUSED status hf_header(const hf_item *items, int64_t n, uint8_t **out, size_t *out_size);
/* A safetensors file of these tensors, read from the device in chunks. */
WARN_UNUSED status hf_write_items(const char *folder, const char *name, const hf_item *items,
                                  int64_t n, stream *s);

/* A safetensors file of these tensors: `read` gives all values of tensor i. */
typedef status (*hf_values)(void *context, int64_t i, double *out);
WARN_UNUSED status hf_write_values(const char *folder, const char *name, const st_tensor *list,
                                   int64_t n, hf_values read, void *context);

#endif
