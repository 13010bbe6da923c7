/* layers.h: a weight with its ops: linear maps and norms, forward and backward (spec section 6).
 *
 * Arrays are act unless said otherwise. Backward adds to the gradients of the parameters; a frozen
 * one has none, and its product is not made. */
#ifndef TESSERA_TRAINER_MODEL_LAYERS_H
#define TESSERA_TRAINER_MODEL_LAYERS_H

#include "trainer/model/lora.h"
#include "trainer/model/params.h"
#include "trainer/model/pass_context.h"

/* y = x Wt + b, W [out, in]; with an adapter, what it adds */
typedef struct linear {
    const param *w, *b; /* b may be NULL */
    int64_t out, in;
    lora adapter; /* of W; of the decoder's layers alone */
} linear;

/* x [rows, in], y [rows, out] with row stride y_stride (0: out). */
WARN_UNUSED status linear_fwd(const pass_context *r, const linear *l, int64_t rows, const void *x,
                              void *y, int64_t y_stride);
/* As linear_fwd, with bias [out] instead of its own; NULL: its own. */
WARN_UNUSED status linear_fwd_biased(const pass_context *r, const linear *l, int64_t rows,
                                     const void *x, const void *bias, void *y);
/* y = residual + x Wt + b, [rows, out]; y is not the residual. */
WARN_UNUSED status linear_fwd_onto(const pass_context *r, const linear *l, int64_t rows,
                                   const void *x, const void *residual, void *y);
/* y [T, out] = residual + the sum over tensor ranks of x Wt, x [Tc, in] and W [out, in] being this
 * rank's columns; room [Tc, out], where there are several. */
WARN_UNUSED status linear_fwd_back(const pass_context *r, const linear *l, comm_at where,
                                   const void *x, const void *residual, void *room, void *y);
/* dW += dyt x, db += sum dy; dx = dy W, or += where dx_add; dx NULL: not wanted. */
WARN_UNUSED status linear_bwd(const pass_context *r, const linear *l, int64_t rows, const void *x,
                              const void *dy, int64_t dy_stride, void *dx, bool dx_add);

typedef struct layernorm {
    const param *w, *b;
} layernorm;

/* x, y [rows, width]; mean, rstd [rows] acc */
WARN_UNUSED status layernorm_fwd(const pass_context *r, const layernorm *l, int64_t rows,
                                 int64_t width, const void *x, void *y, void *mean, void *rstd);
/* dx += ... where dx_add, else written */
WARN_UNUSED status layernorm_bwd(const pass_context *r, const layernorm *l, int64_t rows,
                                 int64_t width, const void *x, const void *mean, const void *rstd,
                                 const void *dy, void *dx, bool dx_add);

/* RMSNorm with the text model's eps; x, y [rows, width]; rstd [rows] acc */
WARN_UNUSED status rmsnorm_fwd(const pass_context *r, const param *w, int64_t rows, int64_t width,
                               const void *x, void *y, void *rstd);
WARN_UNUSED status rmsnorm_bwd(const pass_context *r, const param *w, int64_t rows, int64_t width,
                               const void *x, const void *rstd, const void *dy, void *dx,
                               bool dx_add);

/* y += x, n elements */
WARN_UNUSED status add_to(const pass_context *r, int64_t n, const void *x, void *y);

/* rows "NAME.weight" [out, in] and, where with_bias, "NAME.bias" */
linear linear_bind(params *p, const char *name, bool with_bias);
layernorm layernorm_bind(params *p, const char *name);

#endif
