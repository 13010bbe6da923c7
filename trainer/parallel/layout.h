/* layout.h: the degrees of a configuration (design section 7), checked against each other, against
 * the batch and against what a model allows. Pure: of options and a model, whatever machine this
 * is. */
#ifndef TESSERA_TRAINER_PARALLEL_LAYOUT_H
#define TESSERA_TRAINER_PARALLEL_LAYOUT_H

#include "common/conf/conf.h"

enum { LAYOUT_STAGES = 64 };

typedef struct layout {
    int64_t replicate, shard, context, tensor, pipeline; /* their product is world */
    int64_t expert, expert_tensor;                       /* re-divide shard x context x tensor */
    int64_t world;
    int64_t accumulation; /* micro-steps per step */
    /* decoder layers before each stage's end, the last one's left out (pipeline_stages.h) */
    int32_t stage_end[LAYOUT_STAGES];
} layout;

/* The decoder layers [first, end) of a stage. */
static inline int64_t layout_first_layer(const layout *l, int stage)
{
    return stage > 0 ? l->stage_end[stage - 1] : 0;
}

static inline int64_t layout_end_layer(const layout *l, int stage, int64_t layers)
{
    return stage + 1 < l->pipeline ? l->stage_end[stage] : layers;
}

/* What a model allows: sizes that degrees must divide. */
typedef struct layout_limits {
    int64_t heads, kv_heads;       /* tensor */
    int64_t intermediate;          /* tensor; 0: no dense layer */
    int64_t experts, expert_width; /* expert, expert-tensor; 0: no experts */
    int64_t layers, first_layers;  /* pipeline: all, and those that are bound to the first stage */
    bool tied;                     /* pipeline: the head's weights are the embedding */
} layout_limits;

/* ST_CONFIG names the degrees that do not fit each other, the model or the batch, and the nearest
 * layout of as many ranks that keeps every rule, or says that there is none; where the batch alone
 * does not fit, also the nearest that would. m NULL: the model is not known here; its rules are
 * not asked, and a refusal names no other layout, since the model might refuse that one. */
WARN_UNUSED status layout_of(const conf *c, const layout_limits *m, layout *out);
/* Of a layout that layout_of gave without a model. ST_CONFIG names the degree that the model cannot
 * be cut by. */
WARN_UNUSED status layout_check(const layout *l, const layout_limits *m);

#endif
