/* outputs.h: what the units of a model (unit_order.h) made in the last forward of a training
 * micro-batch, as far as it is kept: for whoever looks for the place where values went wrong. */
#ifndef TESSERA_TRAINER_MODEL_OUTPUTS_H
#define TESSERA_TRAINER_MODEL_OUTPUTS_H

#include "trainer/model/qwen3vl.h"

typedef struct model_output {
    int unit;
    bool arrived; /* another pipeline stage made it */
    const void *x;
    int64_t n; /* act */
} model_output;

/* [unit_count] of the flight's last micro-batch b, in forward order; returns how many. The last one
 * is the residual stream behind the last layer: what went wrong in any of the others stands in it
 * as well, as far as it went into the text. */
int model_outputs(const model *m, int flight, const device_batch *b, model_output *out);

#endif
