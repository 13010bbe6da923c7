/* SPDX-License-Identifier: Apache-2.0 */
/* hf_export.h: writes the registry's values as a Hugging Face folder that transformers loads.
 *
 * With a source folder, the layout of experts, the dtypes, the files and the index are the
 * source's, so that a model which was only loaded comes back bit for bit (except float64, which is
 * computed in float32). Without one, experts are fused as published, tensors are BF16, and the
 * weights are one model.safetensors, or shards with an index.
 *
 * Besides the weights the folder gets config.json (hf_export.c) and the source's tokenizer and
 * processor files. Each file is written under another name, synced and renamed. Weight files of an
 * earlier export that the new ones do not replace are removed. The files' metadata is
 * {"format": "pt"}, without which transformers refuses them. */
#ifndef TESSERA_TRAINER_CHECKPOINT_HF_EXPORT_H
#define TESSERA_TRAINER_CHECKPOINT_HF_EXPORT_H

#include "trainer/model/params/params.h"

/* HF_EXPORT_AS_SOURCE: each tensor as the source has it; BF16 without a source. */
enum { HF_EXPORT_BF16, HF_EXPORT_F32, HF_EXPORT_AS_SOURCE };

/* What an export consists of, whoever wrote it. */
typedef struct hf_export_sum {
    int64_t tensors, files; /* files: those of weights */
    int64_t bytes;          /* of all tensors */
} hf_export_sum;

typedef struct hf_export_options {
    const char *source;    /* folder that the model came from; NULL, or a preset's name: none */
    const char *tokenizer; /* folder of tokenizer files; NULL or "": the source */
    int dtype;             /* HF_EXPORT_* */
    bool choose_layout;    /* use `layout`; false: the source's, else the published one */
    expert_layout layout;
    /* Of several ranks, number `writer` of `writers` writes what it stores, and the first also
     * writes all that is not weights. Nothing is renamed then, so the folder must not be read
     * before all are done. writers 0 or 1: one rank writes everything. */
    int writer, writers;
    /* Frozen parameters have the values of `source`. These are then taken from its files and not
     * from the device, if the files have the tensor in the same shape and dtype, so that not a bit
     * is lost where they are computed in a narrower type. They need not even be stored. */
    bool frozen_is_source;
    int64_t *value_bytes; /* bytes of tensors that this writer wrote, if there are several; NULL */
    int64_t shard_bytes;  /* the most bytes per file; 0: the source's files, else shards of 5 GB */
    hf_export_sum *sum;   /* filled in before anything is written; may be NULL */
} hf_export_options;

/* Writes the folder, which is created with its parent if it does not exist. Waits for the device.
 * ST_CANT_CREATE and ST_IO name the file. */
WARN_UNUSED status hf_export(const params *registry, stream *queue, const model_dims *dims,
                             const char *folder, const hf_export_options *options);

#endif
