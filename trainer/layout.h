/* layout.h: the ranks of a configuration as a mesh (design section 7), and what each takes of an
 * H200's memory, without a GPU.
 *
 * Stored state (master values, moments, gradients, sharded compute weights) is divided by shard x
 * context x tensor x pipeline. A layer's compute weights are gathered for use, two layers at a time
 * (one at work, one prefetched), experts by their own degree. Activations are those of the rank's
 * tokens: rows / context / tensor. */
#ifndef TESSERA_TRAINER_LAYOUT_H
#define TESSERA_TRAINER_LAYOUT_H

#include <stdio.h>

#include "common/conf.h"
#include "trainer/model/params.h"

typedef struct layout {
    int64_t replicate, shard, context, tensor, pipeline; /* their product is world */
    int64_t expert, expert_tensor;                       /* re-divide shard x context x tensor */
    int64_t world;
    int64_t accumulation; /* micro-steps per step */
} layout;

/* ST_CONFIG names the degrees that do not fit each other, or the batch that does not fit them. */
WARN_UNUSED status layout_of(const conf *c, layout *out);

/* Bytes of one rank. */
typedef struct layout_plan {
    int64_t state;       /* master values, moments, gradients: fp32, sharded */
    int64_t weights;     /* bf16 compute weights, sharded */
    int64_t gathered;    /* two layers of them, whole */
    int64_t activations; /* with scratch */
    int64_t total;
    int64_t pinned; /* host: snapshot of a checkpoint */
} layout_plan;

/* p: the registry after groups_apply. rows: of a micro-batch. */
WARN_UNUSED status layout_plan_make(const conf *c, const layout *l, const model_dims *d,
                                    const params *p, int64_t rows, bool checkpoint_full,
                                    layout_plan *out);
/* Prints the mesh, the plan against memory.limit of an H200, the largest micro-batch that fits and,
 * where this one does not, the smallest change that does. *out_fits may be NULL. */
WARN_UNUSED status layout_print(const conf *c, const layout *l, const model_dims *d,
                                const params *p, FILE *to, bool *out_fits);

#endif
