/* layout_plan.h: what each rank of a layout takes of an H200's memory, without a GPU.
 *
 * By the functions that a run itself takes its memory by: what a rank stores of the registry and
 * the buffers that units are gathered into (params_sketch.h), the activations of its part of the
 * micro-batches under way (model_regions_of). Of a pipeline's stages the one that takes most. */
#ifndef TESSERA_TRAINER_PLAN_LAYOUT_PLAN_H
#define TESSERA_TRAINER_PLAN_LAYOUT_PLAN_H

#include <stdio.h>

#include "trainer/plan/memory_gpu.h"
#include "trainer/model/qwen3vl.h"
#include "trainer/parallel/layout.h"

/* Bytes of one rank. */
typedef struct layout_plan {
    int stage;           /* of the pipeline, whose first rank this is */
    int64_t state;       /* master values, moments, gradients: fp32, sharded */
    int64_t weights;     /* bf16 compute weights, sharded */
    int64_t gathered;    /* units of them, whole, and their gradients */
    int64_t activations; /* with scratch */
    int64_t staging;     /* batches as they come over */
    memory_gpu gpu;      /* context, libraries, workspace, captured steps */
    model_regions parts; /* of activations */
    int64_t total;
    int64_t pinned; /* host: snapshot of a checkpoint */
    int64_t built;  /* host, pinned: batches being built, whole rows on every rank */
} layout_plan;

/* p: the registry after groups_apply. rows: of a micro-batch. again: of activation checkpointing.
 * Stages are cut as stage_plan does. */
WARN_UNUSED status layout_plan_make(const conf *c, const layout *l, const model_dims *d,
                                    const params *p, int64_t rows, const recomputes *again,
                                    layout_plan *out);
/* The same of one stage. l: with its stage_end. */
WARN_UNUSED status layout_plan_stage(const conf *c, const layout *l, const model_dims *d,
                                     const params *p, int64_t rows, const recomputes *again,
                                     int stage, layout_plan *out);
/* Within memory.limit of an H200? */
bool layout_fits(const conf *c, const layout_plan *m);
/* model_kinds_bytes on it. */
WARN_UNUSED status layout_kinds_bytes(const model_dims *d, const model_options *o, unsigned kinds,
                                      int64_t *out_layer, int64_t *out_block);
/* Prints the mesh, the plan against memory.limit of an H200, what activation checkpointing keeps,
 * every mode of it with the largest micro-batch that fits and, where this one does not, the
 * smallest change that does. *out_fits may be NULL. */
WARN_UNUSED status layout_print(const conf *c, const layout *l, const model_dims *d,
                                const params *p, FILE *to, bool *out_fits);

#endif
