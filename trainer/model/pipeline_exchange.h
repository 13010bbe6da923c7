/* pipeline_exchange.h: sends between two neighbouring pipeline stages (parallel/layouts.md):
 * activations [T, H] forward, their gradients back. With the auxiliary loss its statistics go both
 * ways too: forward those of the layers so far, back those of all layers.
 *
 * T tokens of this rank, H hidden. */
#ifndef TESSERA_TRAINER_MODEL_PIPELINE_EXCHANGE_H
#define TESSERA_TRAINER_MODEL_PIPELINE_EXCHANGE_H

#include "trainer/model/decoder.h"
#include "trainer/parallel/pipeline_stages.h"

/* A pass of this stage, as far as its neighbours are concerned. */
typedef struct pipeline_exchange {
    pass_kind kind;
    const decoder *stack; /* holds the micro-batch's activations */
    int64_t tokens;       /* T */
} pipeline_exchange;

/* Sends what the pass `done` made and receives what the pass `next` needs, both at once, because
 * neighbours may be sending to each other; so the arrays of the two must differ. Either may have
 * kind PASS_NONE. pipeline: the group of this rank's stages, in their order. */
WARN_UNUSED status pipeline_exchange_cross(const comm *pipeline, stream *queue,
                                           const model_dims *dims, const pipeline_exchange *done,
                                           const pipeline_exchange *next);

#endif
