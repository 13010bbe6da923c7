/* hf_load.h: a Hugging Face folder's weights -> the registry's master values.
 *
 * Accepts BF16, F16, F32, F64, one file or shards, experts in either fused layout or per expert
 * (spec 2.4). Everything is checked before the first value is written: missing, extra and misshapen
 * tensors are named, and nothing changes. */
#ifndef TESSERA_TRAINER_CHECKPOINT_HF_LOAD_H
#define TESSERA_TRAINER_CHECKPOINT_HF_LOAD_H

#include "trainer/model/hf_folder.h"
#include "trainer/model/params.h"

/* p must have its device memory. Waits for the device. */
WARN_UNUSED status hf_load(params *p, stream *s, const model_dims *d, const char *folder);

#endif
