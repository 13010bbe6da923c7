/* model_parts.h: the members of struct model, which qwen3vl.h only declares. For qwen3vl.c, which
 * builds and runs it, and outputs.c, which looks into it. */
#ifndef TESSERA_TRAINER_MODEL_PARTS_H
#define TESSERA_TRAINER_MODEL_PARTS_H

#include "trainer/model/loss.h"
#include "trainer/model/pipeline_exchange.h"
#include "trainer/model/decoder.h"
#include "trainer/model/qwen3vl.h"
#include "trainer/model/vision.h"

/* The activations of one micro-batch between its forward and its backward. */
typedef struct flight {
    vision vision;
    decoder decoder;
} flight;

struct model {
    model_dims dims;
    model_options options;
    params *registry;
    mesh alone;     /* a mesh of one rank, used if none is given */
    batch_caps cap; /* largest micro-batch of this rank */
    stage_part part;
    bool has_vision;
    int n_flights;
    flight *flight;         /* [n_flights] */
    pipeline_exchange done; /* the last pass, until its results are handed over */
    head head;
    void *block; /* device memory of all activations */
    exchange_window window;
    const void *router_bias;
};

#endif
