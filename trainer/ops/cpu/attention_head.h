/* SPDX-License-Identifier: Apache-2.0 */
/* attention_head.h: one head of attention in one segment. attention.c hands it to one of two ways
 * of computing it: with products by OpenBLAS for long segments, or with our own kernel for short
 * ones (attention_short.c). */
#ifndef TESSERA_TRAINER_OPS_CPU_ATTENTION_HEAD_H
#define TESSERA_TRAINER_OPS_CPU_ATTENTION_HEAD_H

#include "trainer/ops/cpu/cpu_ops.h"

/* A head in a segment, or in all branches of a prefix, which are one run of tokens. Pointers are at
 * the first token; strides are in elements. */
typedef struct head_view {
    const real *q, *k, *v;
    int64_t q_stride, k_stride, v_stride, o_stride, lse_stride;
    int64_t n, d;                /* the queries; the width of a head */
    int64_t keys;                /* the own keys of all segments */
    const int32_t *cu, *cu_keys; /* [segments + 1] their borders, as in attention.h */
    int64_t segments;            /* 1, or the number of branches */
    /* The keys of the prefix, at its first token; prefix_keys is 0 where there is none. */
    const real *prefix_k, *prefix_v;
    int64_t prefix_keys;
    const int32_t
        *place; /* [n] the key that a query is itself, counted from `first_key`; NULL: key i */
    int64_t first_key;
    bool causal;
    real scale;
} head_view;

/* What the backward reads and writes besides the view. */
typedef struct head_grads {
    const real *o, *lse, *do_;
    real *dq, *dk, *dv;          /* dq is written, dk and dv are added to */
    real *prefix_dk, *prefix_dv; /* added to */
    real *dot;                   /* written: the row sums of do * o, with stride lse_stride */
} head_grads;

/* Of a view of one segment: how many of its own keys query `index` sees. */
static inline int64_t head_keys(const head_view *view, int64_t index)
{
    if (!view->causal)
        return view->keys;
    return view->place ? view->place[index] - view->first_key + 1 : index + 1;
}

#define HEAD_SOFTMAX_ROW CPU_PASTE(head_softmax_row, CPU_VARIANT)
#define HEAD_DOTS        CPU_PASTE(head_dots, CPU_VARIANT)
#define HEAD_PROBABILITY CPU_PASTE(head_probability, CPU_VARIANT)
#define SHORT_HEAD_FWD   CPU_PASTE(short_head_fwd, CPU_VARIANT)
#define SHORT_HEAD_BWD   CPU_PASTE(short_head_bwd, CPU_VARIANT)

/* Replaces n scores by probabilities and returns their log-sum-exp. */
real HEAD_SOFTMAX_ROW(real *s, int64_t n);
/* Replaces n scores p by exp(p - lse). */
void HEAD_PROBABILITY(real *p, real lse, int64_t n);
void HEAD_DOTS(const head_view *view, const head_grads *grads);

enum {
    SHORT_KEYS = 64, /* the longest segment of the short way: its scratch stays in L1 and L2 */
    LANES = 8,       /* numbers in a vector; head_dim must be a multiple of it */
    SHORT_DIM = 128  /* the largest head_dim of the short way */
};
/* The short way's scratch in numbers: q, k or v transposed twice, and two score matrices. */
enum { SHORT_SCRATCH = 2 * SHORT_DIM * SHORT_KEYS + 2 * SHORT_KEYS * SHORT_KEYS };

static inline bool head_is_short(const head_view *view)
{
    return !view->place && view->segments == 1 && view->prefix_keys == 0 && view->n <= SHORT_KEYS &&
           view->d % LANES == 0 && view->d <= SHORT_DIM;
}

void SHORT_HEAD_FWD(const head_view *view, real *o, real *lse, real *scratch);
void SHORT_HEAD_BWD(const head_view *view, const head_grads *grads, real *scratch);

#endif
