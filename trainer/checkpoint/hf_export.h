/* hf_export.h: the registry's master values -> a Hugging Face folder that transformers loads.
 *
 * The layout, dtypes, files and index of the source folder, so that what was only loaded comes back
 * bit for bit (float64 is computed in float32); without one the published layout, BF16, one
 * model.safetensors or shards with an index. Metadata {"format": "pt"}; config.json (the source's,
 * byte for byte, while the dimensions agree); tokenizer and processor files of the source. Each
 * file is written aside, synced and renamed; weights of an earlier export that the new ones do not
 * replace are removed. */
#ifndef TESSERA_TRAINER_CHECKPOINT_HF_EXPORT_H
#define TESSERA_TRAINER_CHECKPOINT_HF_EXPORT_H

#include "trainer/model/params.h"

enum { HF_EXPORT_BF16, HF_EXPORT_F32, HF_EXPORT_AS_SOURCE };

typedef struct hf_export_options {
    const char *source;    /* folder the model came from; a preset's name or NULL: none */
    const char *tokenizer; /* folder of tokenizer files; NULL or "": source */
    int dtype;             /* HF_EXPORT_*; AS_SOURCE: each tensor as the source has it, else BF16 */
    bool choose_layout;    /* false: as the source, else as published */
    expert_layout layout;
    /* Of several ranks each writes what it stores; the first also what is not weights. None: alone.
     * Nothing is renamed: the folder is not looked at before all are done. */
    int writer, writers;
    int64_t *value_bytes; /* what this writer put of tensors, where several write; may be NULL */
    int64_t shard_bytes;  /* 0: the source's files; where they do not fit, shards of 5 GB */
} hf_export_options;

/* Waits for the device. CANT_CREATE, IO by file. folder is made if absent (its parent too). */
WARN_UNUSED status hf_export(const params *p, stream *s, const model_dims *d, const char *folder,
                             const hf_export_options *o);

#endif
