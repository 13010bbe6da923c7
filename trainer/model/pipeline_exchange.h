/* pipeline_exchange.h: what crosses the border between two pipeline stages (parallel/README.md):
 * activations forward, their gradient back, and with the auxiliary loss its statistics both ways:
 * so far of the layers before, then of all.
 *
 * T tokens of this rank, H hidden, E experts. */
#ifndef TESSERA_TRAINER_MODEL_PIPELINE_EXCHANGE_H
#define TESSERA_TRAINER_MODEL_PIPELINE_EXCHANGE_H

#include "trainer/model/decoder.h"
#include "trainer/parallel/pipeline_stages.h"

/* A pass, where it meets its stage's borders. */
typedef struct pipeline_exchange {
    pass_kind kind;
    const decoder *t; /* where the micro-batch's activations are */
    int64_t tokens;   /* T */
} pipeline_exchange;

/* What `done` made goes out and what `next` needs comes in, at once, so from and to different
 * arrays: neighbours may send to each other. pipeline: the group of stages, in their order. */
WARN_UNUSED status pipeline_exchange_cross(const comm *pipeline, stream *s, const model_dims *d,
                                           const pipeline_exchange *done,
                                           const pipeline_exchange *next);

#endif
