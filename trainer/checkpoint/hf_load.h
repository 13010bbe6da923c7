/* hf_load.h: reads the weights of a Hugging Face folder into the registry.
 *
 * It accepts BF16, F16, F32 and F64, one file or shards, and experts in any of the layouts of
 * hf_check.h. Everything is checked before the first value is written: missing, extra and misshapen
 * tensors are named, and the registry stays as it was. */
#ifndef TESSERA_TRAINER_CHECKPOINT_HF_LOAD_H
#define TESSERA_TRAINER_CHECKPOINT_HF_LOAD_H

#include "trainer/model/hf_folder.h"
#include "trainer/model/params.h"

/* Reads what this rank stores. The registry must have its device memory. Waits for the device.
 * ST_BAD_INPUT if the folder does not fit the model; ST_NO_INPUT and ST_IO name the file. */
WARN_UNUSED status hf_load(params *registry, stream *queue, const char *folder);
/* The same for frozen parameters alone, when the others are read from a checkpoint. */
WARN_UNUSED status hf_load_frozen(params *registry, stream *queue, const char *folder);

#endif
