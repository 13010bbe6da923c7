/* model_parts.h: what a model is made of. Internal to qwen3vl.c and outputs.c. */
#ifndef TESSERA_TRAINER_MODEL_PARTS_H
#define TESSERA_TRAINER_MODEL_PARTS_H

#include "trainer/model/loss.h"
#include "trainer/model/pipeline_exchange.h"
#include "trainer/model/decoder.h"
#include "trainer/model/qwen3vl.h"
#include "trainer/model/vision.h"

/* A micro-batch under way. */
typedef struct flight {
    vision vision;
    decoder decoder;
} flight;

struct model {
    model_dims d;
    model_options o;
    params *p;
    mesh alone;     /* where no mesh is given */
    batch_caps cap; /* of this rank */
    stage_part part;
    bool has_vision;
    int n_flights;
    flight *flight;         /* [n_flights] */
    pipeline_exchange done; /* the last pass, until it is handed over */
    head head;
    void *block; /* device memory of all activations */
    exchange_window window;
    const void *router_bias;
};

#endif
