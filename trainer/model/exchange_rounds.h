/* exchange_rounds.h: the inner functions of exchange.h: what both ways do with the rows of a round,
 * and the entry points of the way on the device. For exchange*.c only. */
#ifndef TESSERA_TRAINER_MODEL_EXCHANGE_ROUNDS_H
#define TESSERA_TRAINER_MODEL_EXCHANGE_ROUNDS_H

#include "trainer/model/exchange.h"

/* R, the rows of a round, for so many slots of a rank. */
int64_t exchange_rows_for(int64_t slots);

/* o [R, H] = the experts' outputs for the rows in state->x, which state->offset divides among
 * experts. */
WARN_UNUSED status exchange_experts_fwd(const pass_context *ctx, const exchange *state,
                                        const exchange_weights *weights, void *o);
/* dx [R, H] = the gradient of state->x, from the gradient of the outputs in state->o; adds the
 * weights' gradients. dx may be state->x. */
WARN_UNUSED status exchange_experts_bwd(const pass_context *ctx, const exchange *state,
                                        const exchange_weights *weights, void *dx);

/* exchange_fwd and exchange_bwd on the device. */
WARN_UNUSED status exchange_device_fwd(const pass_context *ctx, const exchange *state,
                                       const exchange_weights *weights, const int32_t *offset,
                                       const void *x, void *o);
WARN_UNUSED status exchange_device_bwd(const pass_context *ctx, const exchange *state,
                                       const exchange_weights *weights, const int32_t *offset,
                                       void *x, const void *do_);

#endif
