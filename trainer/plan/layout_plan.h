/* layout_plan.h: the memory plan (memory.h) of a layout's ranks, without a GPU and without the
 * other ranks.
 *
 * What a rank stores of the registry and the buffers that units are gathered into come of a sketch
 * (params_sketch.h). Of a pipeline's stages the one that takes most is the plan. */
#ifndef TESSERA_TRAINER_PLAN_LAYOUT_PLAN_H
#define TESSERA_TRAINER_PLAN_LAYOUT_PLAN_H

#include "trainer/parallel/layout.h"
#include "trainer/plan/memory.h"

/* What is planned; all of it borrowed. */
typedef struct plan_input {
    const conf *conf;
    const layout *layout;
    const model_dims *dims;
    const params *params; /* the registry after groups_apply, not cut */
    const plan_device *device;
    int64_t seq_len, patch_budget; /* of a row; 0: as the options say */
    memory_shapes shapes;          /* of training.local_batch_size such rows */
    bool evaluates;                /* it trains nothing */
} plan_input;

/* rows: of a micro-batch; where they are those of the options, shapes count. recomputed: of
 * activation checkpointing. Stages are cut as stage_plan does. */
WARN_UNUSED status layout_plan_make(const plan_input *in, int64_t rows,
                                    const recomputes *recomputed, memory_plan *out);
/* The same of one stage. The layout has its stage_end. */
WARN_UNUSED status layout_plan_stage(const plan_input *in, int64_t rows,
                                     const recomputes *recomputed, int stage, memory_plan *out);
/* Within memory.limit of the device? */
bool layout_fits(const plan_input *in, const memory_plan *m);

#endif
