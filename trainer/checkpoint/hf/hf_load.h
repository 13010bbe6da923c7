/* SPDX-License-Identifier: Apache-2.0 */
/* hf_load.h: reads the weights of a Hugging Face folder into the registry.
 *
 * It accepts BF16, F16, F32 and F64, one file or shards, and experts in any of the layouts of
 * hf_check.h. Everything is checked before the first value is written: missing, extra and misshapen
 * tensors are named, and the registry stays as it was. */
#ifndef TESSERA_TRAINER_CHECKPOINT_HF_LOAD_H
#define TESSERA_TRAINER_CHECKPOINT_HF_LOAD_H

#include "common/model_folder/safetensors.h"
#include "trainer/device/pool.h"
#include "trainer/model/dims/hf_folder.h"
#include "trainer/model/params/params.h"

/* Reads what this rank stores. The registry must have its device memory. Waits for the device.
 * ST_BAD_INPUT if the folder does not fit the model; ST_NO_INPUT and ST_IO name the file. */
WARN_UNUSED status hf_load(params *registry, stream *queue, const char *folder);
/* The same for frozen parameters alone, when the others are read from a checkpoint. */
WARN_UNUSED status hf_load_frozen(params *registry, stream *queue, const char *folder);

/* ---- values taken from the tensors of a folder, as this rank holds them, by several threads ----
 *
 * Values go through double, which holds all accepted dtypes exactly. Experts are stored as [in,
 * out] in the registry, so the layouts with [out, in] are transposed, one expert at a time. What
 * was taken is dropped from memory, so that files larger than memory can be read. */

enum {
    HF_VALUES_CHUNK = 1 << 18, /* values taken at once, but of experts */
    HF_VALUES_THREADS = 16     /* with more, reading the files is the limit */
};

typedef struct hf_values {
    double *taken;   /* [HF_VALUES_CHUNK], or [in, out] of one expert as this rank holds it */
    double *columns; /* some columns of an expert for each thread */
    int64_t longest; /* elements of such a column */
    pool *threads;
    int64_t *bytes; /* counts the bytes taken from the files; borrowed */
} hf_values;

/* Columns [column, column + rows) of one expert's matrix [in, out]: rows [rows, in] of a tensor,
 * from its element `first` on. */
typedef struct hf_columns {
    const st_tensor *tensor;
    int64_t first, column, rows;
} hf_columns;

/* largest: elements of an expert's matrix on this rank, longest: of its columns; 0 without experts.
 * End with hf_values_close, also after ST_NO_MEMORY or ST_OS. */
WARN_UNUSED status hf_values_open(int64_t largest, int64_t longest, int threads,
                                  int64_t *inout_bytes, hf_values *out);
void hf_values_close(hf_values *values);

/* taken [count] = the local elements [at, at + count) of a row that the tensor has in its shape. */
void hf_values_take(hf_values *values, const param *weight, const st_tensor *tensor, int64_t at,
                    int64_t count);
/* Puts those of these columns that this rank holds into taken [in, out]. */
void hf_values_take_columns(hf_values *values, const param *weight, const hf_columns *from);

#endif
