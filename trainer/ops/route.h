/* route.h: choose K of E experts for each token, and the weights to mix them by; sort slots by
 * expert; mix expert outputs; the load-balancing loss (spec sections 4.4, 4.6, 6).
 *
 * route_fwd: p = softmax(logits) in acc; expert[t, 0..K) = the K largest logits, which are the K
 *   largest p however an exponential rounds, heaviest first, ties to the lower index; of what is
 *   not a number any K different ones. weight = p of them, rescaled to sum 1 if norm_topk. Tokens
 *   from n_valid[0] on: expert -1, weight 0. probs [T, E] acc written (aux and backward read it).
 *   count [E] int32 written: slots per expert. Limits: E <= 1024; CUDA: K <= 32.
 * route_bwd: dlogits [T, E] act written from dweight [T, K] acc; with norm_topk
 *   dz_i = w_i (dw_i - sum_j w_j dw_j) on the chosen, 0 elsewhere; without: through the softmax.
 * route_aux: phase over all layers: f_e = count_total[e] / N, P_e = prob_sum[e] / N, N = layers x
 *   valid tokens; aux = E sum_e f_e P_e. Called per layer with add_stats to accumulate count_total
 *   [E] and prob_sum [E] acc (cleared by the caller), then once with finish to write aux [1] acc,
 *   then per layer with grad to add scale[0] * E/N * p_i (f_i - sum_j f_j p_j) to dlogits; scale is
 *   one acc value on the device. n_layers gives N; statistics of several ranks say in all_valid
 *   of how many tokens they are.
 * permute: stable counting sort of the slots (t, k) by expert: offset [E+1] int32, slot_row [T, K]:
 *   row of slot (t, k) in the sorted order (-1 for expert -1), row_token [T*K]: the token of each
 *   sorted row (-1 beyond the last). Rows of an expert are in ascending (t, k). An expert from E
 *   on is BAD_INPUT on the CPU; a device that cannot tell takes it for -1.
 * combine_fwd: y[t] = residual[t] + sum_k weight[t, k] * o[slot_row[t, k]] (fixed k order);
 *   residual NULL: none; it may be y. weight NULL: all 1, the plain sum over the copies of a token.
 * combine_bwd: do_[slot_row] = weight * dy[t]; dweight[t, k] = <dy[t], o[slot_row]>. o may be
 *   overwritten by do_ (do_ == o). */
#ifndef TESSERA_TRAINER_OPS_ROUTE_H
#define TESSERA_TRAINER_OPS_ROUTE_H

#include <stdbool.h>

#include "trainer/device/backend.h"

typedef struct route_fwd_args {
    int64_t tokens, experts, top_k;
    bool norm_topk;
    const int32_t *n_valid; /* one int32 on the device */
    const void *logits;     /* [T, E] act */
    int32_t *expert;        /* [T, K] */
    void *weight;           /* [T, K] acc */
    void *probs;            /* [T, E] acc */
    int32_t *count;         /* [E] */
} route_fwd_args;

typedef struct route_bwd_args {
    int64_t tokens, experts, top_k;
    bool norm_topk;
    const int32_t *n_valid;
    const int32_t *expert;
    const void *weight, *probs, *dweight;
    void *dlogits; /* [T, E] act */
} route_bwd_args;

enum { AUX_ADD_STATS, AUX_FINISH, AUX_GRAD };

typedef struct route_aux_args {
    int phase;
    int64_t tokens, experts, n_layers;
    const int32_t *n_valid;
    const void *all_valid; /* [1] acc: valid tokens of the statistics; NULL: n_valid */
    const int32_t *count;  /* ADD_STATS: [E] of this layer */
    const void *probs;     /* ADD_STATS, GRAD: [T, E] of this layer */
    void *count_total;     /* [E] acc */
    void *prob_sum;        /* [E] acc */
    void *aux;             /* FINISH: [1] acc */
    const void *scale;     /* GRAD: [1] acc */
    void *dlogits;         /* GRAD: [T, E] act */
} route_aux_args;

typedef struct permute_args {
    int64_t tokens, experts, top_k;
    const int32_t *expert; /* [T, K] */
    int32_t *offset;       /* [E+1] */
    int32_t *slot_row;     /* [T, K] */
    int32_t *row_token;    /* [T*K] */
} permute_args;

typedef struct combine_fwd_args {
    int64_t tokens, top_k, width;
    const int32_t *slot_row;
    const void *weight, *o; /* o [T*K, width] act */
    const void *residual;   /* [T, width] act */
    void *y;                /* [T, width] act */
} combine_fwd_args;

typedef struct combine_bwd_args {
    int64_t tokens, top_k, width;
    const int32_t *slot_row;
    const void *weight, *o, *dy;
    void *do_;     /* [T*K, width] act */
    void *dweight; /* [T, K] acc */
} combine_bwd_args;

#endif
