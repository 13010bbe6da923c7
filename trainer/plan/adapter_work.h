/* adapter_work.h: what the products of adapters (model/layers/layers.h) cost in a step. They are narrow: a
 * product of rank r does about r operations for each byte that it moves, so that with small ranks
 * the memory decides how long it takes, and with large ones the rate of products. Each product, and
 * each op beside the products of experts, takes the longer of the two. */
#ifndef TESSERA_TRAINER_PLAN_ADAPTER_WORK_H
#define TESSERA_TRAINER_PLAN_ADAPTER_WORK_H

#include "trainer/model/layers/recompute.h"
#include "trainer/plan/memory.h"
#include "trainer/plan/rates.h"

typedef struct adapter_amount {
    double flops, bytes, seconds;
} adapter_amount;

/* Of one rank and a whole step; in a pipeline, the mean over the stages. */
typedef struct adapter_work {
    adapter_amount forward, backward;
    adapter_amount again; /* what the backward pass computes a second time, which is not useful */
} adapter_work;

/* The arguments are those of base_work_of (base_work.h). If ranks share experts, each is taken to
 * get as many tokens as any other. All is 0 without adapters. */
adapter_work adapter_work_of(const conf *options, const layout *degrees, const model_dims *dims,
                             const params *registry, const recompute *again, double reached,
                             int64_t tokens, const rates *speeds);

#endif
