/* SPDX-License-Identifier: Apache-2.0 */
/* layers.h: what the parts of the model are made of: linear maps and norms, each a weight together
 * with its ops, forward and backward (equations.md, "Gradients"); adapters beside frozen matrices;
 * products of experts; and the moves of a row's data between the ranks that share it.
 *
 * Arrays are of type act unless said otherwise. Backward adds to the gradients of parameters; for a
 * frozen parameter, which has no gradient, the product is skipped. */
#ifndef TESSERA_TRAINER_MODEL_LAYERS_H
#define TESSERA_TRAINER_MODEL_LAYERS_H

#include "trainer/device/space.h"
#include "trainer/model/layers/pass_context.h"
#include "trainer/model/params/params.h"

/* ---- products of experts ---- */

/* Computes, for every expert e of this rank and its rows of x [rows, K] and y [rows, N],
 *
 *   GROUPED_FWD    y = x W_e
 *   GROUPED_DGRAD  x = y W_et
 *   GROUPED_WGRAD  dW_e += xt y; skipped if `weight` is frozen
 *
 * W [E, K, N] is this rank's part of parameter `weight`. offset [E + 1], on the device, holds the
 * first row of each expert. The modes are those of ops/gemm.h. */
WARN_UNUSED status grouped_product(const pass_context *ctx, int mode, const param *weight,
                                   int64_t rows, const int32_t *offset, void *x, void *y);

/* ---- low-rank adapters beside frozen matrices (Hu et al. 2021, arXiv:2106.09685) ----
 *
 *   y = x W + s (x A) B,   s = alpha / r
 *
 * With lengths (DoRA, Liu et al. 2024, arXiv:2402.09353; ops/norm.h) the rows of what is in
 * brackets have a length m of their own, a third row of the registry that begins as their length:
 *
 *   y = x ((m / ||W + s B A||) (W + s B A))t, W [out, in], the norm a constant in backward
 *
 * r is the rank. B starts at 0, so that an adapter changes nothing at first. A linear map
 * W [out, in] has A [r, in] and B [out, r], as PEFT stores them; the experts' W [E, in, out] have
 * A [E, in, r] and B [E, r, out]. A and B are rows of the registry like any other parameter, so the
 * optimiser and checkpoints need not know of them (lora_params.h adds them). Forward keeps nothing:
 * backward computes x A again.
 *
 * If tensor ranks cut W by rows, they cut B the same way and each has all of A; if they cut W
 * by columns, they cut A and each has all of B. Each rank then adds its part of the product, and
 * its part of the gradient of the half that it has whole, which the ranks that own that half sum.
 * Expert-tensor ranks do the same with the width of an expert. An expert's adapter lives on the
 * rank of its expert (exchange.h). */

/* The adapter of one matrix; a is NULL if the matrix has none. */
typedef struct lora {
    const param *a, *b;
    const param *lengths; /* m; NULL: none */
    double scale;
    int64_t rank;
} lora;

/* Finds the adapter of row `weight` of the registry. */
lora lora_bind(const param *weight);

/* Shared by all adapters of a model. Slots are token copies sorted by expert (decoder.h); if ranks
 * share experts, those of one round (exchange.h). */
typedef struct lora_scratch {
    void *xa,
        *dxa;   /* [rows, r]: s x A, and the gradient of x A; rows: slots with experts, else Tc */
    void *wide; /* [slots, max(2I, H)], I being this rank's part of an expert's width; NULL without
                 * adapters of experts */
    void *z, *norm; /* [Tc, longest out], [longest out]; NULL without lengths */
} lora_scratch;

/* Which adapters there are. */
typedef struct lora_modes {
    int64_t rank; /* 0: none */
    bool experts; /* some belong to experts */
    bool dora;    /* they have lengths */
} lora_modes;

/* Takes the scratch from sp. slots: the most that the experts of this rank have at once. */
void lora_scratch_layout(lora_scratch *scratch, space *sp, const shape *sizes, lora_modes modes,
                         int64_t slots);

/* y += s (x A) B for a linear map. x [rows, in], y [rows, out] with y_stride elements per row. */
WARN_UNUSED status lora_linear_fwd(const pass_context *ctx, const lora *adapter, int64_t rows,
                                   const void *x, void *y, int64_t y_stride);
/* Adds the gradients of A and B, and to dx [rows, in] the adapter's part of x's gradient unless dx
 * is NULL. dy [rows, out] has dy_stride elements per row. */
WARN_UNUSED status lora_linear_bwd(const pass_context *ctx, const lora *adapter, int64_t rows,
                                   const void *x, const void *dy, int64_t dy_stride, void *dx);

/* y = x W_e, plus what the adapter adds, over rows as in grouped_product. */
WARN_UNUSED status experts_product(const pass_context *ctx, const param *weight,
                                   const lora *adapter, int64_t rows, const int32_t *offset,
                                   void *x, void *y);
/* Adds the gradients of the matrix and its adapter, and writes dx, which may be x. */
WARN_UNUSED status experts_product_bwd(const pass_context *ctx, const param *weight,
                                       const lora *adapter, int64_t rows, const int32_t *offset,
                                       void *x, void *dy, void *dx);

/* ---- a row's data between the ranks that share it ----
 *
 * Ranks see a row in three ways (parallel/layouts.md): T tokens that belong to this rank alone;
 * Tc = T x tensor tokens of all tensor ranks with the same context rank; A = Tc x context tokens,
 * the whole row. A gather goes from a narrow view to a wide one, a reduce sums and goes back. If
 * a rank has no others to share with, nothing moves and the result is the argument itself.
 *
 * `at` names the collective in messages and in the ledger of traffic (parallel/comm.h). */

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

/* ---- linear maps and norms ---- */

/* y = x Wt + b with W [out, in] and b [out], plus what an adapter adds. */
typedef struct linear {
    const param *w, *b; /* b may be NULL */
    int64_t out, in;
    lora adapter; /* of W; only matrices of decoder layers can have one */
} linear;

/* x [rows, in]; y [rows, out] with y_stride elements per row, 0 meaning out. */
WARN_UNUSED status linear_fwd(const pass_context *ctx, const linear *map, int64_t rows,
                              const void *x, void *y, int64_t y_stride);
/* As linear_fwd, but with bias [out] in place of map's own unless it is NULL. */
WARN_UNUSED status linear_fwd_biased(const pass_context *ctx, const linear *map, int64_t rows,
                                     const void *x, const void *bias, void *y);
/* y = residual + x Wt + b, [rows, out]. y must not be the residual. */
WARN_UNUSED status linear_fwd_onto(const pass_context *ctx, const linear *map, int64_t rows,
                                   const void *x, const void *residual, void *y);
/* The way back from tensor ranks: y [T, out] = residual [T, out] + this rank's rows of the sum over
 * tensor ranks of x Wt, where x [Tc, in] and W [out, in] are the columns that this rank has. room
 * [Tc, out] is scratch, needed if there are several tensor ranks. `where` names the call. */
WARN_UNUSED status linear_fwd_back(const pass_context *ctx, const linear *map, comm_at where,
                                   const void *x, const void *residual, void *room, void *y);
/* dW += dyt x, db += the sum of dy over rows; dx = dy W, or dx += dy W if dx_add. dx may be NULL
 * if it is not wanted. dy has dy_stride elements per row, 0 meaning out. */
WARN_UNUSED status linear_bwd(const pass_context *ctx, const linear *map, int64_t rows,
                              const void *x, const void *dy, int64_t dy_stride, void *dx,
                              bool dx_add);

typedef struct layernorm {
    const param *w, *b;
} layernorm;

/* y = LayerNorm(x). x, y [rows, width]; mean, rstd [rows] acc are written for backward. */
WARN_UNUSED status layernorm_fwd(const pass_context *ctx, const layernorm *norm, int64_t rows,
                                 int64_t width, const void *x, void *y, void *mean, void *rstd);
/* Adds the gradients of weight and bias; writes dx, or adds to it if dx_add. */
WARN_UNUSED status layernorm_bwd(const pass_context *ctx, const layernorm *norm, int64_t rows,
                                 int64_t width, const void *x, const void *mean, const void *rstd,
                                 const void *dy, void *dx, bool dx_add);

/* y = RMSNorm(x; weight) with the eps of the text model. x, y [rows, width]; rstd [rows] acc
 * written. */
WARN_UNUSED status rmsnorm_fwd(const pass_context *ctx, const param *weight, int64_t rows,
                               int64_t width, const void *x, void *y, void *rstd);
WARN_UNUSED status rmsnorm_bwd(const pass_context *ctx, const param *weight, int64_t rows,
                               int64_t width, const void *x, const void *rstd, const void *dy,
                               void *dx, bool dx_add);

/* y += x, `count` elements. */
WARN_UNUSED status add_to(const pass_context *ctx, int64_t count, const void *x, void *y);

/* Finds the registry's rows "NAME.weight" and, with_bias or for a norm, "NAME.bias". */
linear linear_bind(params *registry, const char *name, bool with_bias);
layernorm layernorm_bind(params *registry, const char *name);

#endif
