/* SPDX-License-Identifier: Apache-2.0 */
/* norm.h: layers that divide by a norm: RMSNorm and LayerNorm, their fusion with the rotation of
 * queries and keys, and DoRA's lengths of rows. */
#ifndef TESSERA_TRAINER_OPS_NORM_H
#define TESSERA_TRAINER_OPS_NORM_H

#include <stdbool.h>

#include "trainer/device/backend.h"
#include "trainer/ops/rope.h"

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

/* Checks the sizes of both ops and gives head_dim / 2. BAD_INPUT: a head_dim that is odd or too
 * large, or more than 2^31 - 1 heads in all. */
WARN_UNUSED static inline status norm_rope_half_dim(int64_t rows, int64_t heads, int64_t head_dim,
                                                    int64_t *out_half)
{
    if (rows < 0 || heads < 0 || (heads > 0 && rows > INT32_MAX / heads))
        return FAIL(ST_BAD_INPUT, "norm_rope: %lld rows of %lld heads are more than 2^31 - 1 heads",
                    (long long)rows, (long long)heads);
    return rope_half_dim(head_dim, 1, out_half);
}

typedef struct norm_rope_fwd_args {
    int64_t rows, heads, head_dim;
    double eps;
    const void *x, *w, *cos, *sin;
    void *y, *rstd;
} norm_rope_fwd_args;

typedef struct norm_rope_bwd_args {
    int64_t rows, heads, head_dim;
    const void *x, *w, *cos, *sin, *rstd, *dy;
    void *dx, *dw;
} norm_rope_bwd_args;

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
