/* SPDX-License-Identifier: Apache-2.0 */
/* route.h: the router of a mixture of experts: it chooses K of E experts for each token and the
 * weights to mix them by; it sorts the chosen copies ("slots") by expert and mixes the experts'
 * outputs; and it computes the load-balancing loss. In transformers: modeling_qwen3_vl_moe.py,
 * Qwen3VLMoeTextSparseMoeBlock and load_balancing_loss_func; the loss is that of Fedus et al. 2021
 * (arXiv:2101.03961).
 *
 * T tokens, E <= 1024 experts, K = top_k chosen per token (on CUDA K <= 32). Slot (t, k) is token
 * t's copy for its k-th expert. n_valid is one int32 on the device: tokens from it on are padding
 * and go to no expert.
 *
 * The statistics are those of the samples that the tokens come from: a token that is in several
 * samples, in the beginning that they share (proto/row/batch.h, doc_prefix), counts once for each. It
 * is routed once all the same.
 *
 * BAD_INPUT: K or E outside these limits. */
#ifndef TESSERA_TRAINER_OPS_ROUTE_H
#define TESSERA_TRAINER_OPS_ROUTE_H

#include <stdbool.h>

#include "trainer/device/backend.h"

/* p = softmax(logits) in acc. expert[t, 0..K) are the K largest logits, heaviest first, ties to the
 * lower index. Comparing logits and not probabilities makes the choice independent of how an
 * exponential rounds. If logits are NaN, any K different experts are chosen. weight is p of the
 * chosen, rescaled to a sum of 1 if norm_topk. Padding has expert -1 and weight 0. */
typedef struct route_fwd_args {
    int64_t tokens, experts, top_k;
    bool norm_topk;
    const int32_t *n_valid; /* NULL: all tokens count */
    const void *logits;     /* [T, E] act */
    int32_t *expert;        /* [T, K], written */
    void *weight;           /* [T, K] acc, written */
    void *probs;            /* [T, E] acc, written: p, for the backward and the loss */
    int32_t *count;         /* [E], written: slots of each expert, each counted samples[t] times */
    const int32_t *samples; /* [T]: how many samples have a token; NULL: one each */
} route_fwd_args;

/* The gradient of the logits from that of the weights. With norm_topk, dz_i = w_i (dw_i - sum_j w_j
 * dw_j) for the chosen experts and 0 for the others; without it, the gradient passes through the
 * softmax of all experts. weight, dweight [T, K] acc; probs [T, E] acc. */
typedef struct route_bwd_args {
    int64_t tokens, experts, top_k;
    bool norm_topk;
    const int32_t *n_valid;
    const int32_t *expert;
    const void *weight, *probs, *dweight;
    void *dlogits; /* [T, E] act, written */
} route_bwd_args;

enum { AUX_ADD_STATS, AUX_FINISH, AUX_GRAD };

/* The loss over all layers: aux = E sum_e f_e P_e, where f_e = count_total[e] / N, P_e =
 * prob_sum[e] / N and N = n_layers x valid tokens, each counted samples[t] times. The caller clears
 * count_total and prob_sum, calls AUX_ADD_STATS once per layer, then AUX_FINISH once, and in the
 * backward AUX_GRAD once per layer, which adds scale E/N p_i (f_i - sum_j f_j p_j) to dlogits. */
typedef struct route_aux_args {
    int phase;
    int64_t tokens, experts, n_layers;
    const int32_t *n_valid;
    /* [1] acc: N / n_layers, where count_total and prob_sum are summed over ranks or `samples` is
     * given; NULL: it is n_valid. */
    const void *all_valid;
    const int32_t *samples; /* ADD_STATS, GRAD: [T], as in route_fwd */
    const int32_t *count;   /* ADD_STATS: [E], this layer's slots per expert */
    const void *probs;      /* ADD_STATS, GRAD: [T, E], this layer's probabilities */
    void *count_total;      /* [E] acc; ADD_STATS adds */
    void *prob_sum;         /* [E] acc; ADD_STATS adds */
    void *aux;              /* FINISH: [1] acc, written: the loss */
    const void *scale;      /* GRAD: [1] acc, the loss's gradient */
    void *dlogits;          /* GRAD: [T, E] act, added to */
} route_aux_args;

/* A stable counting sort of the slots by expert: an expert's rows are in ascending (t, k). An
 * expert number of E or more is BAD_INPUT on the CPU; a device that cannot see it treats it as -1.
 * BAD_INPUT also for 2^31 slots or more. */
typedef struct permute_args {
    int64_t tokens, experts, top_k;
    const int32_t *expert; /* [T, K]; -1: the slot goes nowhere */
    /* [E+1], written: expert e has the sorted rows [offset[e], offset[e+1]). */
    int32_t *offset;
    int32_t *slot_row;  /* [T, K], written: the slot's sorted row, or -1 */
    int32_t *row_token; /* [T*K], written: the token of each sorted row; -1 from offset[E] on */
} permute_args;

/* y[t] = residual[t] + sum over k, in ascending order, of weight[t, k] o[slot_row[t, k]]. Slots
 * with row -1 count for nothing. */
typedef struct combine_fwd_args {
    int64_t tokens, top_k, width;
    const int32_t *slot_row;
    /* weight [T, K] acc; NULL: all 1, which is the plain sum over a token's copies. o [T*K, width]
     * act. */
    const void *weight, *o;
    const void *residual; /* [T, width] act, may be y; NULL: 0 */
    void *y;              /* [T, width] act, written */
} combine_fwd_args;

/* do_[slot_row[t, k]] = weight[t, k] dy[t], and dweight[t, k] is the dot product of dy[t] and
 * o[slot_row[t, k]]. do_ may be o, which is then overwritten. */
typedef struct combine_bwd_args {
    int64_t tokens, top_k, width;
    const int32_t *slot_row;
    const void *weight, *o, *dy;
    void *do_;     /* [T*K, width] act, written */
    void *dweight; /* [T, K] acc, written; 0 for slots without a row */
} combine_bwd_args;

#endif
