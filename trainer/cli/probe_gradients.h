/* probe_gradients.h: gradients as tensors of a file, under the names and in the layout of the
 * folder that the weights came from. */
#ifndef TESSERA_TRAINER_CLI_PROBE_GRADIENTS_H
#define TESSERA_TRAINER_CLI_PROBE_GRADIENTS_H

#include "common/base/arena.h"
#include "common/model_folder/safetensors.h"
#include "trainer/model/params.h"

/* One tensor grad.NAME per tensor NAME of folder, each gradient multiplied by `factor`; of a tied
 * model one for the embedding, none for its head. p holds all of its gradients (one rank). The
 * names and values live in a, the list is heap. */
WARN_UNUSED status probe_gradients(const params *p, stream *s, const char *folder, double factor,
                                   arena *a, st_tensor **out, int64_t *out_n);

#endif
