/* SPDX-License-Identifier: Apache-2.0 */
/* lora_params.h: adds adapters (layers.h) to the registry, and reads matrices with their adapters
 * merged in, for export. */
#ifndef TESSERA_TRAINER_MODEL_PARAMS_LORA_PARAMS_H
#define TESSERA_TRAINER_MODEL_PARAMS_LORA_PARAMS_H

#include "trainer/model/params/params.h"

/* What adapters are: their rank, and what their output is scaled by. */
typedef struct lora_kind {
    int64_t rank;
    double alpha;
    bool rslora; /* scaled by alpha / sqrt(rank) instead of alpha / rank */
    bool dora;   /* rows have lengths of their own (layers.h) */
} lora_kind;

/* Adds an adapter of this kind to every matrix that `targets` names, and freezes all other rows.
 * targets is the value of the option lora.targets: last parts of module names or patterns, with
 * commas or spaces between. Before params_alloc and model_new, since rows move. ST_CONFIG for a
 * target that names no matrix of a decoder layer, and with kind.dora for one that is no matrix of
 * attention or of a dense MLP. */
WARN_UNUSED status lora_add(params *registry, lora_kind kind, const char *targets);
/* The module of a row, as targets name it, is the first part of its name. Returns the length. */
size_t lora_module_size(const param *weight);

/* With kind.dora: gives lengths their first values, those of the rows of the adapted matrices.
 * After all other values, on one rank. Waits. ST_CONFIG names a row whose length is 0. */
WARN_UNUSED status lora_set_lengths(params *registry, stream *queue);

/* Gathers all of every adapter on every rank, as host doubles in param.whole that the next call
 * overwrites. Every rank calls it, on the thread of its collectives. Does nothing for one rank. */
WARN_UNUSED status lora_gather(params *registry, stream *queue);
/* Reads elements [first, first + count) of a whole adapter; with several ranks, those that
 * lora_gather gathered. */
WARN_UNUSED status lora_read(const param *weight, stream *queue, int64_t first, int64_t count,
                             double *to);

/* Adds to `inout` what the adapter of a matrix, if it has one without lengths, adds to local
 * elements [first, first + count). The matrix itself is not read and need not be stored. */
WARN_UNUSED status lora_merge(const param *weight, stream *queue, int64_t first, int64_t count,
                              double *inout);
/* Reads local elements [first, first + count) of a matrix, which this rank must store, with its
 * adapter's product added: the matrix that the model computes with. */
WARN_UNUSED status lora_read_merged(const param *weight, stream *queue, int64_t first,
                                    int64_t count, double *to);

#endif
