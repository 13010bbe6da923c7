/* unit_order.h: the units of a model (parallel/README.md) in the order a forward enters them; a
 * backward goes back the same way. Numbers, from the dimensions alone.
 *
 *   patch embedding | block 0 .. | deepstack merger j behind its block | .. | final merger |
 *   embedding | layer 0 .. | final norm and head */
#ifndef TESSERA_TRAINER_MODEL_UNIT_ORDER_H
#define TESSERA_TRAINER_MODEL_UNIT_ORDER_H

#include "trainer/model/dims.h"
#include "trainer/parallel/layout.h"

/* Deepstack mergers before block b. */
static inline int unit_mergers_before(const model_dims *d, int64_t b)
{
    int n = 0;
    for (int j = 0; j < d->vision.n_deepstack; j++)
        n += d->vision.deepstack[j] < b;
    return n;
}

static inline int unit_patch(void)
{
    return 0;
}

static inline int unit_block(const model_dims *d, int64_t b)
{
    return 1 + (int)b + unit_mergers_before(d, b);
}

/* j 0: the final merger; 1 + j: deepstack j. */
static inline int unit_merger(const model_dims *d, int j)
{
    return j == 0 ? unit_block(d, d->vision.depth) : unit_block(d, d->vision.deepstack[j - 1]) + 1;
}

/* Of the vision tower. */
static inline int unit_vision_count(const model_dims *d)
{
    return d->vision.depth > 0 ? unit_merger(d, 0) + 1 : 0;
}

static inline int unit_embedding(const model_dims *d)
{
    return unit_vision_count(d);
}

static inline int unit_layer(const model_dims *d, int64_t l)
{
    return unit_vision_count(d) + 1 + (int)l;
}

static inline int unit_head(const model_dims *d)
{
    return unit_layer(d, d->text.layers);
}

static inline int unit_count(const model_dims *d)
{
    return unit_head(d) + 1;
}

/* What a pipeline stage has of the model: decoder layers [first, end). */
typedef struct stage_part {
    int64_t first, end;
    bool opens;  /* vision tower, embedding, deepstack features */
    bool closes; /* final norm, head, loss */
} stage_part;

static inline stage_part stage_part_of(const model_dims *d, const layout *l, int stage)
{
    return (stage_part){.first = layout_first_layer(l, stage),
                        .end = layout_end_layer(l, stage, d->text.layers),
                        .opens = stage == 0,
                        .closes = stage + 1 == l->pipeline};
}

/* Its units: [first, end). */
static inline int stage_first_unit(const model_dims *d, const stage_part *p)
{
    return p->opens ? 0 : unit_layer(d, p->first);
}

static inline int stage_end_unit(const model_dims *d, const stage_part *p)
{
    return p->closes ? unit_count(d) : unit_layer(d, p->end);
}

#endif
