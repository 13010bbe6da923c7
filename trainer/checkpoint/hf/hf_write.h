/* hf_write.h: writes the files of an export. Each is written as NAME.tmp, synced and renamed to
 * NAME, and then its folder is synced. Internal to checkpoint. */
#ifndef TESSERA_TRAINER_CHECKPOINT_HF_WRITE_H
#define TESSERA_TRAINER_CHECKPOINT_HF_WRITE_H

#include <stdio.h>

#include "common/model_folder/safetensors.h"
#include "trainer/model/params/params.h"

/* out: "FOLDER/NAME", to read or to write. ST_CONFIG if that is too long for a path. */
WARN_UNUSED status hf_path(char out[STATUS_PATH_MAX], const char *folder, const char *name);
/* Writes a file with this text of `size` bytes. */
WARN_UNUSED status hf_write_text(const char *folder, const char *name, const char *text,
                                 size_t size);
/* Copies from_folder/NAME to folder/NAME. Does nothing if there is no such file or both are the
 * same one. */
WARN_UNUSED status hf_copy_file(const char *from_folder, const char *folder, const char *name);
/* A tensor to write, and where it goes. */
typedef struct hf_item {
    param_piece piece;
    st_dtype dtype;
    int64_t file;  /* number of the file in the plan */
    int64_t place; /* order within the file */
    /* Its bytes in the source's file, if its value is taken from there and not from the device;
     * what an adapter adds to it is added. NULL otherwise. */
    const uint8_t *source;
} hf_item;

/* Adds to `inout` the `count` values of this dtype that lie in a file. room: [count]. */
void hf_add_values(const uint8_t *bytes, st_dtype dtype, int64_t count, double *inout,
                   double *room);
/* *out: the header of a safetensors file of items [count], in heap memory. */
WARN_UNUSED status hf_header(const hf_item *items, int64_t count, uint8_t **out, size_t *out_size);
/* Writes a safetensors file of items [count], whose values are read from the device in chunks on
 * `queue`.
 */
WARN_UNUSED status hf_write_items(const char *folder, const char *name, const hf_item *items,
                                  int64_t count, stream *queue);

/* Gives all values of tensor number `index`, in the tensor's own order. */
typedef status (*hf_reader)(void *context, int64_t index, double *out);
/* Writes a safetensors file of tensors list [count], whose values `read` gives. */
WARN_UNUSED status hf_write_values(const char *folder, const char *name, const st_tensor *list,
                                   int64_t count, hf_reader read, void *context);

#endif
