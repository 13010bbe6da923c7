/* outputs.h: finds the outputs of a model's units (unit_order.h) in the last training forward, as
 * far as they are still kept. The search for the place where a value first became infinite or NaN
 * uses it (run/nonfinite.c). */
#ifndef TESSERA_TRAINER_MODEL_OUTPUTS_H
#define TESSERA_TRAINER_MODEL_OUTPUTS_H

#include "trainer/model/qwen3vl.h"

typedef struct model_output {
    int unit;
    bool arrived;  /* it came from the pipeline stage before */
    const void *x; /* [count] act on the device; borrowed, valid until the next pass */
    int64_t count;
} model_output;

/* Writes the outputs of the flight's last micro-batch b, in forward order, to out, which has room
 * for unit_count entries, and returns their number. The last entry is the residual stream after the
 * last layer: anything that went wrong earlier and reached the text shows there too. */
int model_outputs(const model *net, int flight, const device_batch *batch, model_output *out);

#endif
