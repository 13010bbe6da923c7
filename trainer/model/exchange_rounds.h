/* exchange_rounds.h: what both ways of an exchange do with a round's rows, and the way on the
 * device. For exchange.c. */
#ifndef TESSERA_TRAINER_MODEL_EXCHANGE_ROUNDS_H
#define TESSERA_TRAINER_MODEL_EXCHANGE_ROUNDS_H

#include "trainer/model/exchange.h"

/* R, of a rank's slots. */
int64_t exchange_rows_for(int64_t slots);

/* o [R, H] = experts of e->x, of the rows that e->offset says. */
WARN_UNUSED status exchange_experts_fwd(const pass_context *r, const exchange *e,
                                        const exchange_weights *w, void *o);
/* dx [R, H] from e->x and the gradient in e->o; dx may be e->x. */
WARN_UNUSED status exchange_experts_bwd(const pass_context *r, const exchange *e,
                                        const exchange_weights *w, void *dx);

WARN_UNUSED status exchange_device_fwd(const pass_context *r, const exchange *e,
                                       const exchange_weights *w, const int32_t *offset,
                                       const void *x, void *o);
WARN_UNUSED status exchange_device_bwd(const pass_context *r, const exchange *e,
                                       const exchange_weights *w, const int32_t *offset, void *x,
                                       const void *do_);

#endif
