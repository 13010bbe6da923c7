/* lora_params.h: adapters (lora.h) as rows of the registry, and what they make of a matrix. */
#ifndef TESSERA_TRAINER_MODEL_LORA_PARAMS_H
#define TESSERA_TRAINER_MODEL_LORA_PARAMS_H

#include "trainer/model/params.h"

/* Adds the adapters of every matrix that `targets` names and freezes all other rows. Before
 * params_alloc and before the model binds. targets: as lora.targets. ST_CONFIG for one that names
 * nothing that can have an adapter. */
WARN_UNUSED status lora_add(params *p, int64_t rank, double alpha, const char *targets);
/* Name of the module that a row's matrix belongs to, as targets know it; its length. */
size_t lora_module_size(const param *p);

/* All of every adapter on every rank of a mesh: host doubles in param.whole, which the next call
 * writes again; nothing to do for one rank. Every rank calls it, on the thread of its collectives.
 */
WARN_UNUSED status lora_gather(params *p, stream *s);
/* Elements of a whole adapter; of several ranks as lora_gather left it. */
WARN_UNUSED status lora_read(const param *p, stream *s, int64_t first, int64_t n, double *to);

/* Local elements [first, first + n) of a matrix, which are stored here, with its adapter's added:
 * what the model computes with. */
WARN_UNUSED status lora_read_merged(const param *p, stream *s, int64_t first, int64_t n,
                                    double *to);

#endif
