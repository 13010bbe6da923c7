/* probe_gradients.h: turns gradients into tensors for a file, with the names and the layout of the
 * folder that the weights came from. */
#ifndef TESSERA_TRAINER_CLI_PROBE_GRADIENTS_H
#define TESSERA_TRAINER_CLI_PROBE_GRADIENTS_H

#include "common/base/arena.h"
#include "common/model_folder/safetensors.h"
#include "trainer/model/params/params.h"

/* Makes a tensor grad.NAME for every tensor NAME of the folder, with the gradient multiplied by
 * `factor`. A model whose head is tied to its embedding has one for the embedding and none for the
 * head. The registry must hold all gradients, as it does on a single rank. Names and values live in
 * the arena; the list *out is on the heap. */
WARN_UNUSED status probe_gradients(const params *params, stream *stream, const char *folder,
                                   double factor, arena *arena, st_tensor **out, int64_t *out_n);

#endif
