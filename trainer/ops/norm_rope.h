/* norm_rope.h: RMSNorm of each head and its rotation in one pass, for q and k of the text tower
 * (transformers: modeling_qwen3_vl_moe.py, Qwen3VLMoeTextAttention, q_norm and k_norm followed by
 * apply_rotary_pos_emb).
 *
 *   y = rotate(w * x r),  r = (mean over head_dim of x^2 + eps)^-1/2;  rotate as in rope.h
 *
 * x, y, dx and dy are [rows, heads, head_dim] act; w [head_dim] act; cos and sin [rows, head_dim/2]
 * acc; rstd (r) [rows, heads] acc, written by the forward and read by the backward; dw [head_dim]
 * acc, added to. dx may be dy.
 *
 * The results are those of rmsnorm_fwd followed by rope_apply, or of rope_apply inverse followed by
 * rmsnorm_bwd, where act holds the value between them exactly; where act rounds, there is one
 * rounding less. */
#ifndef TESSERA_TRAINER_OPS_NORM_ROPE_H
#define TESSERA_TRAINER_OPS_NORM_ROPE_H

#include "trainer/ops/rope.h"

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

#endif
