/* dora.h: what adapters need besides products whose direction and length are trained apart (DoRA,
 * Liu et al. 2024, arXiv:2402.09353, as PEFT computes it).
 *
 *   dora_norm   norm[j] = || W_j + s (B A)_j ||, the length of a row of the adapted matrix
 *   dora_fwd    y = residual + (m / norm) z, where z = x (W + s B A)t
 *   dora_bwd    dz = (m / norm) dy; dm += the sum over rows of dy z / norm
 *
 * The norm counts as a constant in the backward pass (section 4.3 there). It is rounded to act, so
 * that m, which begins as the norm, divided by it is exactly 1. */
#ifndef TESSERA_TRAINER_OPS_DORA_H
#define TESSERA_TRAINER_OPS_DORA_H

#include "trainer/device/backend.h"

/* w [out, in], a [rank, in], b [out, rank], act; norm [out] act, written. */
typedef struct dora_norm_args {
    int64_t out, in, rank;
    double scale;
    const void *w, *a, *b;
    void *norm;
} dora_norm_args;

/* z [rows, n], m [n], norm [n] act; residual [rows, n] act or NULL for 0; y [rows, n] act with
 * y_stride elements a row. */
typedef struct dora_fwd_args {
    int64_t rows, n, y_stride;
    const void *z, *m, *norm, *residual;
    void *y;
} dora_fwd_args;

/* dy [rows, n] act with dy_stride elements a row; z [rows, n], m [n], norm [n] act; dz [rows, n]
 * act is written and may be z; dm [n] acc, added to. */
typedef struct dora_bwd_args {
    int64_t rows, n, dy_stride;
    const void *dy, *z, *m, *norm;
    void *dz, *dm;
} dora_bwd_args;

#endif
