/* hf_config.h: config.json of an exported folder. Internal to checkpoint. */
#ifndef TESSERA_TRAINER_CHECKPOINT_HF_CONFIG_H
#define TESSERA_TRAINER_CHECKPOINT_HF_CONFIG_H

#include "trainer/model/dims.h"

/* Writes config.json into `folder`: the source's, byte for byte, if its dimensions are those of
 * the model, else one of our own. source: the folder that the model came from; NULL: none.
 *
 * Two kinds of values are changed in the copy. If dtype is not NULL, the members "dtype" and
 * "torch_dtype" get that value, since readers go by them. If the model's head has weights of its
 * own but transformers 4.57 would tie it to the embedding all the same, and so drop what is stored
 * (model/head.h), every "tie_word_embeddings" becomes false. */
WARN_UNUSED status hf_write_config(const model_dims *dims, const char *folder, const char *source,
                                   const char *dtype);

#endif
