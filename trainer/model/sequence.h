/* sequence.h: moves a row's data between the ranks that share it.
 *
 * Ranks see a row in three ways (parallel/layouts.md): T tokens that belong to this rank alone;
 * Tc = T x tensor tokens of all tensor ranks with the same context rank; A = Tc x context tokens,
 * the whole row. A gather goes from a narrow view to a wide one, a reduce sums and goes back. If
 * a rank has no others to share with, nothing moves and the result is the argument itself.
 *
 * `at` names the collective in messages and in the ledger of traffic (parallel/comm.h). */
#ifndef TESSERA_TRAINER_MODEL_SEQUENCE_H
#define TESSERA_TRAINER_MODEL_SEQUENCE_H

#include "trainer/model/pass_context.h"

/* *out [Tc, width] act = x [T, width] of every tensor rank, in room if there are several. */
WARN_UNUSED status sequence_gather(const pass_context *ctx, comm_at at, const void *x,
                                   int64_t width, void *room, const void **out);
/* y [T, width] act = this rank's rows of the sum over tensor ranks of x [Tc, width]. With one
 * tensor rank y may be x. */
WARN_UNUSED status sequence_reduce(const pass_context *ctx, comm_at at, const void *x,
                                   int64_t width, void *y);

/* *out [A, width] act = x [Tc, width] of every context rank in the order of the packed row, in
 * `packed` if there are several. ranks: [A, width] scratch. */
WARN_UNUSED status keys_gather(const pass_context *ctx, comm_at at, const void *x, int64_t width,
                               void *ranks, void *packed, const void **out);
/* y [Tc, width] act = this rank's rows of the sum over context ranks of x [A, width], which is in
 * the order of the packed row. ranks: [A, width] scratch. */
WARN_UNUSED status keys_reduce(const pass_context *ctx, comm_at at, const void *x, int64_t width,
                               void *ranks, void *y);

/* *out [ranks of the row, rows, H] act = the visual features x [rows, H] of every rank of the row,
 * in room if there are several. rows: device_batch.feature_rows. */
WARN_UNUSED status features_gather(const pass_context *ctx, comm_at at, const void *x, void *room,
                                   const void **out);
/* y [rows, H] act = this rank's part of the sum over the row's ranks of x, which has the shape of
 * features_gather's result. */
WARN_UNUSED status features_reduce(const pass_context *ctx, comm_at at, const void *x, void *y);

#endif
