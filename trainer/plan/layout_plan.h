/* SPDX-License-Identifier: Apache-2.0 */
/* layout_plan.h: the memory plan (memory.h) of a layout's ranks, made without a GPU and without the
 * other ranks, and which decoder layers each pipeline stage gets.
 *
 * A sketch of the registry (params.h) has what a rank stores and how large the buffers are
 * into which FSDP units are gathered. The plan of a pipeline is that of the stage that takes most
 * memory. Stages have the layers that parallelism.pipeline_parallel_split_points names; without it
 * they take about the same predicted time. */
#ifndef TESSERA_TRAINER_PLAN_LAYOUT_PLAN_H
#define TESSERA_TRAINER_PLAN_LAYOUT_PLAN_H

#include "trainer/model/params/params.h"
#include "trainer/parallel/layout.h"
#include "trainer/plan/memory.h"

/* Fills inout->stage_end, unless there is only one stage. The predicted time uses the shipped rates
 * and the row of row_work.h, so it is the same on every rank and device. params: the registry after
 * groups_apply. ST_CONFIG names split points that do not fit. */
WARN_UNUSED status stage_plan(const conf *options, const model_dims *dims, const params *params,
                              layout *inout);
/* Predicted time of the slowest stage over the mean; 1 for a single stage. */
WARN_UNUSED status stage_plan_uneven(const conf *options, const model_dims *dims,
                                     const params *params, const layout *layout, double *out);

/* What is planned. All pointers are borrowed. */
typedef struct plan_input {
    const conf *conf;
    const layout *layout;
    const model_dims *dims;
    const params *params; /* the registry after groups_apply, not cut */
    const plan_device *device;
    int64_t seq_len, patch_budget; /* of a row; 0: as the options say */
    memory_shapes shapes;          /* of micro-batches of training.local_batch_size rows */
    bool evaluates;                /* the run only evaluates */
} plan_input;

/* Plans micro-batches of `rows` rows. Where that is training.local_batch_size, the shapes of the
 * input are used; otherwise the widest that the options allow. recomputed: what activation
 * checkpointing recomputes. Pipeline stages are cut as stage_plan does. */
WARN_UNUSED status layout_plan_make(const plan_input *in, int64_t rows,
                                    const recomputes *recomputed, memory_plan *out);
/* The same for one pipeline stage. The layout must have its stage_end. */
WARN_UNUSED status layout_plan_stage(const plan_input *in, int64_t rows,
                                     const recomputes *recomputed, int stage, memory_plan *out);
/* True if the plan is within memory.limit of what a rank may use of the device. */
bool layout_fits(const plan_input *in, const memory_plan *plan);

#endif
