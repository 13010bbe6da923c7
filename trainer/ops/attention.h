/* attention.h: softmax attention inside segments, grouped-query, causal or full (spec 3.5, 4.2, 6).
 *
 * q [T, Hq, d], k, v [T, Hkv, d] act with token strides in elements (so a packed qkv works);
 * o [T, Hq, d] act; lse [T, Hq] acc. Query head i reads kv head i / (Hq / Hkv). Segment s is
 * tokens [cu[s], cu[s+1]), cu [segments+1] int32 on the device, ascending from 0 to at most T (the
 * CPU answers others with BAD_INPUT; a device that cannot tell keeps inside the arrays); empty
 * segments are legal; tokens from cu[segments] on: o = 0, lse = 0. scale is usually d^-1/2.
 * cu_keys: queries are only some of a segment's tokens (context ranks): k and v have `keys` rows,
 * segment s has keys [cu_keys[s], cu_keys[s+1]), and query i is itself key place[i], rising inside
 * a segment; causal: it sees those up to there. dk and dv [keys, Hkv, d] are then of these queries.
 * bwd: do_ [T, Hq, d] (stride o_stride); dq, dk, dv written (strides as q, k, v), zero beyond the
 * last segment. work: [T, Hq] acc scratch (row sums of do * o).
 *
 * attention_cached: one query each, over keys and values kept of the tokens before it (generation).
 * q, o [queries, Hq, d] act; k, v [rows, Hkv, d] act. Query i sees the rows
 * [first[i], first[i] + length[i]); length 0: o = 0. first, length [queries] int32 on the device,
 * inside the rows (the CPU answers others with BAD_INPUT; CUDA leaves out what lies beyond). */
#ifndef TESSERA_TRAINER_OPS_ATTENTION_H
#define TESSERA_TRAINER_OPS_ATTENTION_H

#include <stdbool.h>

#include "trainer/device/backend.h"

typedef struct attention_fwd_args {
    int64_t tokens, heads, kv_heads, head_dim, segments;
    int64_t longest; /* most tokens of a segment; 0: no bound but T */
    bool causal;
    double scale;
    const int32_t *cu;
    int64_t keys; /* rows of k and v; with cu_keys */
    const int32_t *cu_keys,
        *place; /* [segments+1], [T] on the device; NULL: keys are the queries */
    const void *q, *k, *v;
    int64_t q_stride, k_stride, v_stride, o_stride;
    void *o, *lse;
} attention_fwd_args;

typedef struct attention_bwd_args {
    int64_t tokens, heads, kv_heads, head_dim, segments;
    int64_t longest; /* most tokens of a segment; 0: no bound but T */
    bool causal;
    double scale;
    const int32_t *cu;
    int64_t keys;
    const int32_t *cu_keys, *place;
    const void *q, *k, *v, *o, *lse, *do_;
    int64_t q_stride, k_stride, v_stride, o_stride;
    void *dq, *dk, *dv, *work;
} attention_bwd_args;

#ifndef __cplusplus
/* The backward of that forward; do_, dq, dk, dv and work are the caller's to add. */
static inline attention_bwd_args attention_bwd_of(const attention_fwd_args *f)
{
    return (attention_bwd_args){.tokens = f->tokens,
                                .heads = f->heads,
                                .kv_heads = f->kv_heads,
                                .head_dim = f->head_dim,
                                .segments = f->segments,
                                .longest = f->longest,
                                .causal = f->causal,
                                .scale = f->scale,
                                .cu = f->cu,
                                .keys = f->keys,
                                .cu_keys = f->cu_keys,
                                .place = f->place,
                                .q = f->q,
                                .k = f->k,
                                .v = f->v,
                                .o = f->o,
                                .lse = f->lse,
                                .q_stride = f->q_stride,
                                .k_stride = f->k_stride,
                                .v_stride = f->v_stride,
                                .o_stride = f->o_stride};
}
#endif

enum { CACHED_HEAD_DIM_MAX = 128 };

typedef struct attention_cached_args {
    int64_t queries, heads, kv_heads, head_dim, rows;
    double scale;
    const int32_t *first, *length;
    const void *q, *k, *v;
    void *o;
} attention_cached_args;

#endif
