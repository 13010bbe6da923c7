/* SPDX-License-Identifier: Apache-2.0 */
/* state_list.h: what the writing and the reading of a training state share: which tensors a rank's
 * file has (train_state.h), where their values are on the device, and the text that says which part
 * of a parameter each is. Private to train_state.c, train_state_load.c and train_state_load.c. */
#ifndef TESSERA_TRAINER_CHECKPOINT_STATE_LIST_H
#define TESSERA_TRAINER_CHECKPOINT_STATE_LIST_H

#include "common/model_folder/safetensors.h"
#include "trainer/checkpoint/state/train_state.h"

enum {
    STATE_ARRAYS = 5,       /* that a parameter may have */
    STATE_NAME = 160,       /* bytes of a tensor's name */
    STATE_SLICE_TEXT = 256, /* bytes of what the metadata says of one */
    STATE_LARGEST = 8,      /* bytes of the largest element */
    STATE_CHUNK = 1 << 22   /* bytes that are read or written at once */
};

/* How the names of a parameter's tensors begin: its value, moments and scales, in this order. */
extern const char *const state_prefix[STATE_ARRAYS];
/* The metadata entry that says that master values are in BF16. */
extern const char STATE_MASTER[];

/* The tensors of this rank's file, all [count]. */
typedef struct state_list {
    st_tensor *tensor;
    void **array; /* where the values are in device memory */
    char (*name)[STATE_NAME];
    const param **of; /* the parameter that each belongs to */
    int *which;       /* and which of its arrays it is, as in `state_prefix` */
    size_t count;
    bool writing; /* not the rows of the base, whose values model.path has */
} state_list;

/* writing: the file is written and not read, so rows of the base are left out. The list borrows the
 * registry and has its own memory, which state_list_done frees. ST_NO_MEMORY: it is empty. */
WARN_UNUSED status state_list_make(const params *registry, bool writing, state_list *out);
/* Leaves the list empty, and takes an empty one too. */
void state_list_done(state_list *states);

/* Whether an array, by its place in state_prefix, has the scales of a moment's codes. */
bool state_is_scale(int which);

/* path: of a writer's file in the folder. */
WARN_UNUSED status state_file_path(char path[STATUS_PATH_MAX], const char *folder,
                                   state_writer writer);

/* What a file has of a parameter. */
typedef struct state_slice {
    slice held;    /* the writer's local tensor */
    int64_t first; /* the local element with which the file's tensor begins */
} state_slice;

/* The text of a slice, as train_state.h says; reading gives false if it describes none. */
void state_slice_print(const state_slice *part, char out[STATE_SLICE_TEXT]);
bool state_slice_read(const char *text, state_slice *out);

#endif
