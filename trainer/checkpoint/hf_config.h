/* hf_config.h: config.json of an export. Internal to checkpoint. */
#ifndef TESSERA_TRAINER_CHECKPOINT_HF_CONFIG_H
#define TESSERA_TRAINER_CHECKPOINT_HF_CONFIG_H

#include "trainer/model/dims.h"

/* The source's config.json, byte for byte, while its dimensions are d's; else one of our own.
 * dtype: what its members "dtype" and "torch_dtype" are to say, readers go by them; NULL: as they
 * are. Where the head is its own and transformers 4.57 would tie it all the same (head.h), and so
 * drop what is stored, every "tie_word_embeddings" says false. */
WARN_UNUSED status hf_write_config(const model_dims *d, const char *folder, const char *source,
                                   const char *dtype);

#endif
