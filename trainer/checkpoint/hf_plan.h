/* hf_plan.h: what an export writes: tensors, their dtypes, and the files they go into. Internal to
 * checkpoint.
 *
 * With a source folder whose tensors fit the model: its layout of experts, its dtypes, its files
 * and the order in them, as far as the options do not say otherwise. Else the published layout,
 * BF16, and files of at most shard_bytes in the registry's order. */
#ifndef TESSERA_TRAINER_CHECKPOINT_HF_PLAN_H
#define TESSERA_TRAINER_CHECKPOINT_HF_PLAN_H

#include "trainer/checkpoint/hf_export.h"
#include "trainer/checkpoint/hf_write.h"

enum { HF_NAME_MAX = 256 };

typedef struct hf_plan {
    hf_item *items; /* heap; by file, then place */
    int64_t n;
    char (*files)[HF_NAME_MAX]; /* heap; names */
    int64_t n_files;
    int64_t total_bytes;
    bool single; /* one model.safetensors, no index */
    bool same;   /* names, shapes, dtypes and files are the source's: so is its index */
} hf_plan;

WARN_UNUSED status hf_plan_make(const params *p, const hf_export_options *o, hf_plan *out);
void hf_plan_done(hf_plan *e);

#endif
