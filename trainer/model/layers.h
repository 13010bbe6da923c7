/* layers.h: linear maps and norms, each a weight together with its ops, forward and backward
 * (equations.md, "Gradients").
 *
 * Arrays are of type act unless said otherwise. Backward adds to the gradients of parameters; for a
 * frozen parameter, which has no gradient, the product is skipped. */
#ifndef TESSERA_TRAINER_MODEL_LAYERS_H
#define TESSERA_TRAINER_MODEL_LAYERS_H

#include "trainer/model/lora.h"
#include "trainer/model/params.h"
#include "trainer/model/pass_context.h"

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
