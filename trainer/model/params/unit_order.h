/* SPDX-License-Identifier: Apache-2.0 */
/* unit_order.h: numbers the FSDP units of a model in the order in which a forward pass enters them;
 * a backward pass goes the opposite way. The numbers follow from the dimensions alone.
 *
 *   patch embedding | block 0 .. | deepstack merger j, after its block | .. | final merger |
 *   embedding | layer 0 .. | final norm and head
 *
 * A unit is a set of parameters that is gathered and released together (parallel/fsdp.h). */
#ifndef TESSERA_TRAINER_MODEL_PARAMS_UNIT_ORDER_H
#define TESSERA_TRAINER_MODEL_PARAMS_UNIT_ORDER_H

#include "trainer/model/dims/dims.h"
#include "trainer/parallel/layout.h"

/* How many deepstack mergers come before block `block`. */
static inline int unit_mergers_before(const model_dims *dims, int64_t block)
{
    int count = 0;
    for (int j = 0; j < dims->vision.n_deepstack; j++)
        count += dims->vision.deepstack[j] < block;
    return count;
}

static inline int unit_patch(void)
{
    return 0;
}

static inline int unit_block(const model_dims *dims, int64_t block)
{
    return 1 + (int)block + unit_mergers_before(dims, block);
}

/* index = 0: the final merger; index = 1 + i: deepstack merger i. */
static inline int unit_merger(const model_dims *dims, int index)
{
    return index == 0 ? unit_block(dims, dims->vision.depth)
                      : unit_block(dims, dims->vision.deepstack[index - 1]) + 1;
}

/* The number of units of the vision tower. */
static inline int unit_vision_count(const model_dims *dims)
{
    return dims->vision.depth > 0 ? unit_merger(dims, 0) + 1 : 0;
}

static inline int unit_embedding(const model_dims *dims)
{
    return unit_vision_count(dims);
}

static inline int unit_layer(const model_dims *dims, int64_t layer)
{
    return unit_vision_count(dims) + 1 + (int)layer;
}

static inline int unit_head(const model_dims *dims)
{
    return unit_layer(dims, dims->text.layers);
}

static inline int unit_count(const model_dims *dims)
{
    return unit_head(dims) + 1;
}

/* The part of the model that a pipeline stage has: decoder layers [first, end), and the rest. */
typedef struct stage_part {
    int64_t first, end;
    bool opens;  /* it has the vision tower, the embedding and the deepstack features */
    bool closes; /* it has the final norm, the head and the loss */
} stage_part;

static inline stage_part stage_part_of(const model_dims *dims, const layout *degrees, int stage)
{
    return (stage_part){.first = layout_first_layer(degrees, stage),
                        .end = layout_end_layer(degrees, stage, dims->text.layers),
                        .opens = stage == 0,
                        .closes = stage + 1 == degrees->pipeline};
}

/* A stage has the units from stage_first_unit to before stage_end_unit. */
static inline int stage_first_unit(const model_dims *dims, const stage_part *part)
{
    return part->opens ? 0 : unit_layer(dims, part->first);
}

static inline int stage_end_unit(const model_dims *dims, const stage_part *part)
{
    return part->closes ? unit_count(dims) : unit_layer(dims, part->end);
}

/* ---- units in words, for messages and reports ---- */

enum { UNIT_NAME = 48, UNIT_RANGE = 2 * UNIT_NAME + 8 };

/* "layer 3", "vision block 0", "head". */
void unit_name(const model_dims *dims, int unit, char out[UNIT_NAME]);
/* The units from `first` down to `last`, as a backward pass has them: "head to layer 31", or one
 * name if they are one. */
void unit_range(const model_dims *dims, int first, int last, char out[UNIT_RANGE]);

#endif
