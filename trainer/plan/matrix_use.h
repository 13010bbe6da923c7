/* matrix_use.h: how often a step uses the matrices of the decoder's layers, and with how many rows.
 * What frozen matrices (base_work.h) and their adapters (adapter_work.h) cost follows from it. */
#ifndef TESSERA_TRAINER_PLAN_MATRIX_USE_H
#define TESSERA_TRAINER_PLAN_MATRIX_USE_H

#include "trainer/model/layers/recompute.h"
#include "trainer/plan/memory.h"

typedef struct matrix_use {
    const layout *degrees;
    const text_dims *text;
    const recompute *again; /* what is recomputed of the decoder's layers */
    int64_t first_reached;  /* the lowest layer that the backward pass reaches */
    int64_t tokens;         /* of a step, on all ranks .. */
    int64_t ranks;          /* .. that share them */
    bool shared;            /* ranks share experts .. */
    int64_t rounds;         /* .. in so many rounds of each pass (model/exchange/exchange.h) */
} matrix_use;

/* reached: the share of the layers that the backward pass reaches. Borrows its arguments. */
matrix_use matrix_use_of(const conf *options, const layout *degrees, const model_dims *dims,
                         const recompute *again, double reached, int64_t tokens);

bool matrix_is_expert(const param *row);
bool matrix_is_gate_up(const param *row); /* the first matrix of experts */
/* True if the backward pass goes through the layer of this matrix. */
bool matrix_is_reached(const matrix_use *how, const param *row);
/* True if the backward pass makes the output of this matrix again. Experts that ranks share are
 * recomputed as a whole, and the last product of a dense MLP never is. */
bool matrix_is_recomputed(const matrix_use *how, const param *row);

#endif
