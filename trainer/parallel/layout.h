/* SPDX-License-Identifier: Apache-2.0 */
/* layout.h: how many ranks share the data, the layers, the experts, the tensors and the sequence,
 * checked against each other, against the batch and against what the model allows.
 *
 *   world = pipeline x replicate x shard x context x tensor
 *
 * The degrees `expert` and `expert_tensor` divide the shard x context x tensor ranks once more
 * (mesh.h). All functions here are pure: they depend on options and model only, not on the machine.
 */
#ifndef TESSERA_TRAINER_PARALLEL_LAYOUT_H
#define TESSERA_TRAINER_PARALLEL_LAYOUT_H

#include "common/conf/conf.h"

enum { LAYOUT_STAGES = 64 };

typedef struct layout {
    int64_t replicate, shard, context, tensor, pipeline; /* their product is world */
    int64_t expert, expert_tensor;                       /* divide shard x context x tensor again */
    int64_t world;                                       /* ranks of the job */
    int64_t accumulation;                                /* micro-steps per step */
    /* The layer at which each stage ends, for all stages but the last (pipeline_stages.h). */
    int32_t stage_end[LAYOUT_STAGES];
} layout;

/* How many data-parallel consumers share the rows of a step. */
static inline int64_t layout_consumers(const layout *degrees)
{
    return degrees->replicate * degrees->shard;
}

/* Stage `stage` has the decoder layers [layout_first_layer, layout_end_layer). layers: of the
 * model. */
static inline int64_t layout_first_layer(const layout *degrees, int stage)
{
    return stage > 0 ? degrees->stage_end[stage - 1] : 0;
}

static inline int64_t layout_end_layer(const layout *degrees, int stage, int64_t layers)
{
    return stage + 1 < degrees->pipeline ? degrees->stage_end[stage] : layers;
}

/* What a model allows. Each size must be divisible by the degree named beside it. */
typedef struct layout_limits {
    int64_t heads, kv_heads;       /* tensor */
    int64_t intermediate;          /* tensor: width of the dense MLP; 0: no layer is dense */
    int64_t experts, expert_width; /* expert and expert_tensor; 0: the model has no experts */
    int64_t layers, first_layers;  /* pipeline: all layers; those that the first stage must have */
    bool tied;                     /* pipeline must be 1: the head's weights are the embedding */
} layout_limits;

/* Makes the layout of these options; stage_end stays 0. limits NULL: the model is not known here,
 * and its rules are not checked.
 *
 * ST_CONFIG names the degrees that do not fit each other, the model or the batch. It adds the
 * nearest layout of as many ranks that keeps every rule, or that there is none, and if only the
 * batch does not fit, also the nearest batch that does. Without limits it names no other layout,
 * since the model might refuse that one. */
WARN_UNUSED status layout_of(const conf *options, const layout_limits *limits, layout *out);
/* Checks a layout that was made without limits. ST_CONFIG names the degree by which the model
 * cannot be divided. */
WARN_UNUSED status layout_check(const layout *degrees, const layout_limits *limits);

#endif
