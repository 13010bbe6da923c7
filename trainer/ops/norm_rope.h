/* norm_rope.h: RMSNorm of each head and its rotation in one pass: q and k of the text tower
 * (spec 4.2, 4.3).
 *
 *   y = rotate(w * x rstd),  rstd = (mean over head_dim of x^2 + eps)^-1/2;  rotate as rope.h
 * x, y, dx, dy [rows, heads, head_dim] act; w [head_dim] act; cos, sin [rows, head_dim/2] acc;
 * rstd [rows, heads] acc, written by fwd, read by bwd; dw [head_dim] acc, added to. dx may be dy.
 * The same numbers as rmsnorm_fwd and rope_apply one behind the other, or rope_apply inverse and
 * rmsnorm_bwd, where act holds what is between them exactly; where it rounds, one rounding less.
 * BAD_INPUT: an odd or too large head_dim; rows x heads beyond 31 bits. */
#ifndef TESSERA_TRAINER_OPS_NORM_ROPE_H
#define TESSERA_TRAINER_OPS_NORM_ROPE_H

#include "trainer/ops/rope.h"

/* As rope_half_dim, and the heads must be countable in 31 bits. */
WARN_UNUSED static inline status norm_rope_half_dim(int64_t rows, int64_t heads, int64_t head_dim,
                                                    int64_t *out_half)
{
    if (rows < 0 || heads < 0 || (heads > 0 && rows > INT32_MAX / heads))
        return FAIL(ST_BAD_INPUT, "norm_rope: %lld rows of %lld heads are beyond 31 bits",
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

#endif
