/* layout_plan.h: what each rank of a layout takes of an H200's memory, without a GPU.
 *
 * Stored state (master values, moments, gradients, sharded compute weights) is divided by shard x
 * context x tensor x pipeline. A layer's compute weights are gathered for use, two layers at a time
 * (one at work, one prefetched), experts by their own degree. Activations are those of the rank's
 * tokens: rows / context / tensor. */
#ifndef TESSERA_TRAINER_LAYOUT_PLAN_H
#define TESSERA_TRAINER_LAYOUT_PLAN_H

#include <stdio.h>

#include "trainer/model/qwen3vl.h"
#include "trainer/parallel/layout.h"

/* Bytes of one rank. */
typedef struct layout_plan {
    int64_t state;       /* master values, moments, gradients: fp32, sharded */
    int64_t weights;     /* bf16 compute weights, sharded */
    int64_t gathered;    /* two layers of them, whole */
    int64_t activations; /* with scratch */
    model_regions parts; /* of activations */
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
