/* SPDX-License-Identifier: Apache-2.0 */
/* attention.h: softmax attention inside segments, with grouped queries, causal or full (Vaswani et
 * al. 2017, arXiv:1706.03762; grouped queries: Ainslie et al. 2023, arXiv:2305.13245). A segment is
 * a document of a packed row, or a frame of a picture; tokens see only tokens of their own segment.
 *
 *   o = softmax(scale q kt) v      query head h reads key-value head h / (Hq / Hkv)
 *
 * attention_fwd and attention_bwd work on T = tokens tokens. Segment s is the tokens [cu[s],
 * cu[s+1]). Tokens from cu[segments] on are padding: their o and lse are 0, and so are their
 * gradients. Empty segments are legal.
 *
 * With cu_keys, the queries are only some of a segment's tokens, as on a rank that shares a
 * sequence with others (context parallelism). k and v then have `keys` rows, segment s has the keys
 * [cu_keys[s], cu_keys[s+1]), and query i is itself key place[i]; places rise inside a segment. A
 * causal query sees the keys up to its own. dk and dv [keys, Hkv, d] are then the parts that come
 * from these queries.
 *
 * With prefix, segments go on after another one: prefix[s] is the segment whose keys every query of
 * segment s sees before those of its own; -1: none. Such a segment is a branch of its prefix. A
 * prefix has no prefix itself and comes directly before its branches, so that a prefix and its
 * branches are one run of tokens. This is attention over trees of depth two (as in Yao et al. 2024,
 * arXiv:2404.00242): the branches never see each other, and dk and dv of a prefix are summed over
 * the prefix and all of its branches. Only what is not finite may pass between the branches of a
 * prefix, since a device may multiply it by a probability of 0: a NaN in one of them can become a
 * NaN in the results of another.
 *
 * attention_cached is for generation: one query per document, over the cached keys and values of
 * the tokens before it. Query i sees the rows [first[i], first[i] + length[i]) and before them, if
 * its document has a prefix, the rows [prefix_first[i], prefix_first[i] + prefix_length[i]), which
 * several documents may have in common; no rows at all give o = 0. */
#ifndef TESSERA_TRAINER_OPS_ATTENTION_H
#define TESSERA_TRAINER_OPS_ATTENTION_H

#include <stdbool.h>

#include "trainer/device/backend.h"

/* q [tokens, heads, head_dim], k and v [tokens or keys, kv_heads, head_dim], all act. Strides are
 * in elements from one token to the next, so q, k and v may lie in one packed array. Written: o
 * [tokens, heads, head_dim] act; lse [tokens, heads] acc, the log of each query's sum of
 * exponentials, which the backward reads. scale is usually head_dim^-1/2. BAD_INPUT: heads that are
 * not a multiple of kv_heads. The CPU also answers BAD_INPUT for borders that do not ascend from 0
 * to at most T, for places outside their segment and for prefixes that are not as above; a device
 * that cannot see them stays inside the arrays. */
typedef struct attention_fwd_args {
    int64_t tokens, heads, kv_heads, head_dim, segments;
    int64_t longest; /* the most tokens a segment can have; 0: no bound but T */
    bool causal;
    double scale;
    const int32_t *cu;
    int64_t keys; /* rows of k and v; used with cu_keys */
    /* [segments+1] and [T] int32 on the device; NULL: the keys are the queries. */
    const int32_t *cu_keys, *place;
    const int32_t *prefix; /* [segments] int32 on the device; NULL: no segment has one */
    const void *q, *k, *v;
    int64_t q_stride, k_stride, v_stride, o_stride;
    void *o, *lse;
} attention_fwd_args;

/* The gradients of attention_fwd; shapes, strides and errors as there. o and lse are what the
 * forward wrote; do_ is the gradient of o and has o's stride. dq, dk and dv are written, with the
 * strides of q, k and v, and are 0 for padding. work [tokens, heads] acc is scratch for the row
 * sums of do * o. any_order: sums may be taken in any order, so that the bits may differ the next
 * time, even on a device that was opened deterministic; it changes nothing on one that was not. */
typedef struct attention_bwd_args {
    int64_t tokens, heads, kv_heads, head_dim, segments;
    int64_t longest; /* the most tokens a segment can have; 0: no bound but T */
    bool causal, any_order;
    double scale;
    const int32_t *cu;
    int64_t keys;
    const int32_t *cu_keys, *place, *prefix;
    const void *q, *k, *v, *o, *lse, *do_;
    int64_t q_stride, k_stride, v_stride, o_stride;
    void *dq, *dk, *dv, *work;
} attention_bwd_args;

#ifndef __cplusplus
/* The arguments of the backward of a forward; the caller adds do_, dq, dk, dv and work. */
static inline attention_bwd_args attention_bwd_of(const attention_fwd_args *fwd)
{
    return (attention_bwd_args){.tokens = fwd->tokens,
                                .heads = fwd->heads,
                                .kv_heads = fwd->kv_heads,
                                .head_dim = fwd->head_dim,
                                .segments = fwd->segments,
                                .longest = fwd->longest,
                                .causal = fwd->causal,
                                .scale = fwd->scale,
                                .cu = fwd->cu,
                                .keys = fwd->keys,
                                .cu_keys = fwd->cu_keys,
                                .place = fwd->place,
                                .prefix = fwd->prefix,
                                .q = fwd->q,
                                .k = fwd->k,
                                .v = fwd->v,
                                .o = fwd->o,
                                .lse = fwd->lse,
                                .q_stride = fwd->q_stride,
                                .k_stride = fwd->k_stride,
                                .v_stride = fwd->v_stride,
                                .o_stride = fwd->o_stride};
}
#endif

enum { CACHED_HEAD_DIM_MAX = 128 };

/* q and o [queries, heads, head_dim] act; k and v [rows, kv_heads, head_dim] act; first, length,
 * prefix_first and prefix_length [queries] int32 on the device, inside the rows. The CPU answers
 * BAD_INPUT for ranges outside them; CUDA leaves out what lies outside. On CUDA head_dim is at most
 * CACHED_HEAD_DIM_MAX. */
typedef struct attention_cached_args {
    int64_t queries, heads, kv_heads, head_dim, rows;
    double scale;
    const int32_t *first, *length;
    const int32_t *prefix_first, *prefix_length; /* NULL: no document has a prefix */
    const void *q, *k, *v;
    void *o;
} attention_cached_args;

#endif
