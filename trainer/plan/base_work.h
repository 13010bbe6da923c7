/* base_work.h: what the frozen matrices under adapters cost in a step apart from their products:
 * those that are stored in codes are expanded before each product (model/params/quantised.h), and those
 * whose rows have lengths (DoRA, model/layers/layers.h) need the norm of each row, and in the backward pass
 * the product of the forward pass once more. */
#ifndef TESSERA_TRAINER_PLAN_BASE_WORK_H
#define TESSERA_TRAINER_PLAN_BASE_WORK_H

#include "trainer/model/layers/recompute.h"
#include "trainer/plan/memory.h"

/* Bytes that a rank moves in a step, the mean over the stages of a pipeline; again: those of work
 * that the backward pass does a second time. flops: of products that it makes a second time, on all
 * ranks, and which are no part of recompute_plan_count. */
typedef struct base_work {
    double forward, backward, again;
    int64_t flops;
} base_work;

/* registry: after groups_apply, not cut. again: what is recomputed of the decoder's layers, of
 * which the backward pass reaches the share `reached`. tokens: of a step, on all ranks. Experts
 * that ranks share expand their matrices in each round that is queued (model/exchange/exchange.h). */
base_work base_work_of(const conf *options, const layout *degrees, const model_dims *dims,
                       const params *registry, const recompute *again, double reached,
                       int64_t tokens);

#endif
