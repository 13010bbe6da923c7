/* norm.h: RMSNorm and LayerNorm over the last axis, forward and backward (spec sections 3.5, 4.2,
 * 6).
 *
 * rmsnorm:   y = w * x rstd,           rstd = (mean x^2 + eps)^-1/2
 * layernorm: y = w * (x - mu) rstd + b, rstd = (var + eps)^-1/2
 * x, y, dx, dy [rows, n] act; w, b [n] act; mean, rstd [rows] acc, written by fwd, read by bwd;
 * dw, db [n] acc, added to. dx = dx_accumulate ? dx + ... : ...
 * y may be x in fwd only if the caller has no use for x in bwd. dx may be dy. Per-head q/k norm:
 * rows = tokens * heads, n = head_dim, row_stride/group as below. */
#ifndef TESSERA_TRAINER_OPS_NORM_H
#define TESSERA_TRAINER_OPS_NORM_H

#include <stdbool.h>

#include "trainer/device/backend.h"

typedef struct rmsnorm_fwd_args {
    int64_t rows, n;
    double eps;
    const void *x, *w;
    void *y, *rstd;
} rmsnorm_fwd_args;

typedef struct rmsnorm_bwd_args {
    int64_t rows, n;
    const void *x, *w, *rstd, *dy;
    void *dx, *dw;
    bool dx_accumulate;
} rmsnorm_bwd_args;

typedef struct layernorm_fwd_args {
    int64_t rows, n;
    double eps;
    const void *x, *w, *b;
    void *y, *mean, *rstd;
} layernorm_fwd_args;

typedef struct layernorm_bwd_args {
    int64_t rows, n;
    const void *x, *w, *mean, *rstd, *dy;
    void *dx, *dw, *db;
    bool dx_accumulate;
} layernorm_bwd_args;

#endif
