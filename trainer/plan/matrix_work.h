/* SPDX-License-Identifier: Apache-2.0 */
/* matrix_work.h: what a step does with the matrices of the decoder beside their plain products.
 *
 * Frozen matrices that are stored in codes are expanded before each product (model/params/quantised.h),
 * and those whose rows have lengths (DoRA, model/layers/layers.h) need the norm of each row, and in the
 * backward pass the product of the forward pass once more. The products of adapters are narrow: a
 * product of rank r does about r operations for each byte that it moves, so that with small ranks
 * the memory decides how long it takes, and with large ones the rate of products. Each product, and
 * each op beside the products of experts, takes the longer of the two. */
#ifndef TESSERA_TRAINER_PLAN_MATRIX_WORK_H
#define TESSERA_TRAINER_PLAN_MATRIX_WORK_H

#include "trainer/model/dims/dims.h"
#include "trainer/model/layers/recompute.h"
#include "trainer/parallel/layout.h"
#include "trainer/plan/memory.h"
#include "trainer/plan/rates.h"

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

typedef struct adapter_amount {
    double flops, bytes, seconds;
} adapter_amount;

/* Of one rank and a whole step; in a pipeline, the mean over the stages. */
typedef struct adapter_work {
    adapter_amount forward, backward;
    adapter_amount again; /* what the backward pass computes a second time, which is not useful */
} adapter_work;

/* The arguments are those of base_work_of. If ranks share experts, each is taken to
 * get as many tokens as any other. All is 0 without adapters. */
adapter_work adapter_work_of(const conf *options, const layout *degrees, const model_dims *dims,
                             const params *registry, const recompute *again, double reached,
                             int64_t tokens, const rates *speeds);

#endif
