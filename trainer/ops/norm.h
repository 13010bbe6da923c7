/* norm.h: RMSNorm (Zhang & Sennrich 2019, arXiv:1910.07467) and LayerNorm (Ba et al. 2016,
 * arXiv:1607.06450) over the last axis, forward and backward.
 *
 *   rmsnorm:    y = w * x r,             r = (mean(x^2) + eps)^-1/2
 *   layernorm:  y = w * (x - mean) r + b,  r = (var(x) + eps)^-1/2
 *
 * Backward, with g = dy w and xhat the normalised x before w:
 *   rmsnorm:    dx = r (g - xhat mean(g xhat))
 *   layernorm:  dx = r (g - mean(g) - xhat mean(g xhat))
 *   dw += sum over rows of dy xhat;  db += sum over rows of dy
 *
 * x, y, dx and dy are [rows, n] act; w and b [n] act; mean and rstd (r) [rows] acc, written by the
 * forward and read by the backward; dw and db [n] acc, added to. With dx_accumulate dx is added to
 * instead of written. dx may be dy. y may be x only where no backward will need x. */
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
