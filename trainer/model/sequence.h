/* sequence.h: a rank's tokens between the views of its row (parallel/README.md).
 *
 * T tokens of this rank; Tc = T x tensor of its context rank; A = Tc x context, the whole row.
 * Where no other rank has part in a view nothing moves, and the result is the argument. */
#ifndef TESSERA_TRAINER_MODEL_SEQUENCE_H
#define TESSERA_TRAINER_MODEL_SEQUENCE_H

#include "trainer/model/pass_context.h"

/* *out [Tc, width] act: x [T, width] of every tensor rank; in room, unless there is one. */
WARN_UNUSED status sequence_gather(const pass_context *r, comm_at at, const void *x, int64_t width,
                                   void *room, const void **out);
/* y [T, width] act: own rows of the sum over tensor ranks of x [Tc, width]; y may be x of one. */
WARN_UNUSED status sequence_reduce(const pass_context *r, comm_at at, const void *x, int64_t width,
                                   void *y);

/* *out [A, width] act in packed order: x [Tc, width] of every context rank; in packed, unless there
 * is one. ranks: [A, width] scratch. */
WARN_UNUSED status keys_gather(const pass_context *r, comm_at at, const void *x, int64_t width,
                               void *ranks, void *packed, const void **out);
/* y [Tc, width] act: own rows of the sum over context ranks of x [A, width] in packed order. */
WARN_UNUSED status keys_reduce(const pass_context *r, comm_at at, const void *x, int64_t width,
                               void *ranks, void *y);

/* *out [ranks of the row, rows, width] act: features x [rows, width] of each; in room, unless there
 * is one. rows: device_batch.feature_rows. */
WARN_UNUSED status features_gather(const pass_context *r, comm_at at, const void *x, void *room,
                                   const void **out);
/* y: own features of the sum over the row's ranks of x. */
WARN_UNUSED status features_reduce(const pass_context *r, comm_at at, const void *x, void *y);

#endif
