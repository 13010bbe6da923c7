/* SPDX-License-Identifier: Apache-2.0 */
/* attention_loops.h: attention and its gradients as plain loops in double, exactly or with the
 * roundings to bf16 of an implementation.
 *
 * The fused kernels that the published model trains with, and ours, round the probabilities, the
 * gradient of the scores before it is multiplied by the scale, and each result once. cuDNN's
 * backward multiplies first and then rounds (`scaled`), and rounds dk and dv of every query head
 * before it adds those of one key-value head (`by_head`). That was found by comparing the results
 * of cuDNN 9.19 on an H200 (tests/bench/results/gpu, 2026-11-26) with sixteen such orders: only
 * this one gives all of what was reported of these inputs, which is dk[89] = 2.125 of "ragged
 * text", dk[6727] = 1.546875 of "ragged crowd", dq[2918] = -1.0234375 of "real frames", and root
 * mean square errors of dk of 0.00125 in "ragged short" and 0.00166 in "real documents". */
#ifndef TESSERA_TESTS_PARITY_ATTENTION_LOOPS_H
#define TESSERA_TESTS_PARITY_ATTENTION_LOOPS_H

#include "tests/parity/parity.h"

typedef struct attention {
    int64_t tokens, heads, kv_heads, d, segments;
    bool causal;
    double scale;
    const int32_t *cu;
    int64_t keys; /* rows of k and v */
    /* Set only where the queries are some of a segment's tokens, not all; else NULL. */
    const int32_t *cu_keys, *place;
    const int32_t *prefix;        /* NULL: no segment has one */
    double *q, *k, *v, *up, *row; /* row: room for the scores of one query */
    int64_t q_stride, k_stride, v_stride, o_stride;
    int64_t every; /* only the last of each `every` queries is computed; 0: all of them are */
} attention;

/* The keys that a query sees: those of its segment's prefix and then those of its own. */
typedef struct visible {
    int64_t prefix, n_prefix, own, n;
} visible;

/* An order of roundings to the device's type of activations. */
typedef struct attention_order {
    const parity *test;
    bool scaled, by_head; /* see above */
    bool dp; /* the gradient of the probabilities is rounded too: no kernel does that */
} attention_order;

typedef struct gradients {
    double *dq, *dk, *dv; /* what is computed is added; strides of q, k, v */
} gradients;

/* Whether the loops compute this query. */
bool attention_computes(const attention *sizes, int64_t token);
visible attention_sees(const attention *sizes, int64_t segment, int64_t token);
/* One query's output [d] and log-sum-exp. With an order, the probabilities relative to the largest
 * are rounded, and so is the output. */
double attention_query(const attention *sizes, int64_t token, int64_t head, const visible *seen,
                       double *out, const attention_order *order);
/* The gradients of all queries that are computed, by the formulas of trainer/model/equations.md.
 * With an order, sums are not rounded at their end; the caller does that. */
void attention_gradients(const attention *sizes, const gradients *to, const attention_order *order);

#endif
