/* SPDX-License-Identifier: Apache-2.0 */
/* hf_plan.h: decides what an export writes: which tensors, in which dtypes, into which files.
 * Internal to checkpoint.
 *
 * With a source folder whose tensors fit the model, the plan takes over its layout of experts, its
 * dtypes, its files and their order, as far as the options do not say otherwise. Without one it has
 * the published layout, BF16, and files of at most shard_bytes in the order of the registry. */
#ifndef TESSERA_TRAINER_CHECKPOINT_HF_PLAN_H
#define TESSERA_TRAINER_CHECKPOINT_HF_PLAN_H

#include "trainer/checkpoint/hf/hf_export.h"
#include "trainer/checkpoint/hf/hf_write.h"
#include "trainer/model/dims/hf_folder.h"

enum { HF_NAME_MAX = 256 };

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

typedef struct hf_plan {
    hf_item *items; /* heap; in the order of files and of places in them */
    int64_t count;
    char (*files)[HF_NAME_MAX]; /* heap; names of the files */
    int64_t n_files;
    int64_t total_bytes; /* of all tensors, as the index says */
    bool single;         /* one file model.safetensors, without an index */
    hf_folder source;    /* its files stay mapped for the items whose values are taken from them */
    bool same; /* names, shapes, dtypes and files are the source's, and so its index holds */
} hf_plan;

/* Makes the plan; free it with hf_plan_done. */
WARN_UNUSED status hf_plan_make(const params *registry, const hf_export_options *options,
                                hf_plan *out);
void hf_plan_done(hf_plan *plan);

/* ---- writing it (hf_slices.c) ---- */

/* Which of the ranks that write a file together writes a part of it. */
typedef struct hf_part {
    bool alone;       /* there is no other: each file is NAME.tmp until it is whole */
    bool with_header; /* writes the headers of the files, which one of the ranks does */
} hf_part;

/* Writes this rank's part of every tensor of the plan into `folder`, synced. Files have their final
 * size from the start, and each rank writes what it stores at the place where it belongs, so a file
 * is whole only after all ranks have written. *out_bytes (may be NULL): bytes of values that were
 * written. Values of a device without storage are counted and left as holes in the files. */
WARN_UNUSED status hf_write_slices(const hf_plan *plan, const char *folder, hf_part own,
                                   stream *queue, int64_t *out_bytes);

#endif
