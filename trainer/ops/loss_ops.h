/* loss_ops.h: cross entropy of a chunk of logits, gradient norm, AdamW (spec sections 4.5, 6).
 *
 * xent: logits [n, V] act (CPU: real), label [n] int32 (< 0: ignored), weight [n] acc.
 *   nll[i] = logsumexp(logits_i) - logits_i[label]; best[i] = argmax (lowest index on ties).
 *   loss_sum[0] += weight * nll and weight_sum[0] += weight in a fixed order, both double on the
 *   device. backward: logits_i is replaced by weight * (softmax - onehot), zero where ignored.
 * optim_list: the tensors that sum_squares and adamw go over in one call, on the device. Work is
 * cut into chunks of OPTIM_CHUNK elements; a tensor begins a new one, first_chunk is its number,
 * and the list's first_chunk is its first tensor's: a run of a list's tensors is a list. p master,
 * m, v acc, g acc (sum of gradients); addresses are multiples of 16. sum_squares: total[0] (double
 * on the device) += sum g^2 over the list, fixed order. step_finish: from the step's device sums:
 * mean gradient norm = sqrt(sum_squares) / weight; grad_scale = min(1, max_norm / norm) / weight
 * (max_norm 0: no clipping); skip = 1 where weight is 0 or the norm is not finite. Writes
 * grad_scale, grad_norm and skip of *step. adamw: decoupled decay (Loshchilov & Hutter 2019) on
 * every tensor of the list: g * grad_scale is used; act copy written if not NULL and another dtype.
 * All step scalars come from the device, written once per step by one small copy. skip: nothing
 * changes. Labels: the CPU answers one from V on with BAD_INPUT; a device that cannot tell ignores
 * it. */
#ifndef TESSERA_TRAINER_OPS_LOSS_OPS_H
#define TESSERA_TRAINER_OPS_LOSS_OPS_H

#include <stdbool.h>

#include "trainer/device/backend.h"

typedef struct xent_args {
    int64_t n, vocab;
    const int32_t *label;
    const void *weight; /* [n] acc or NULL: all 1 */
    void *logits;
    bool backward;
    void *nll;     /* [n] acc, may be NULL */
    int32_t *best; /* [n], may be NULL */
    double *loss_sum, *weight_sum;
} xent_args;

enum { OPTIM_CHUNK = 16384 };

typedef struct optim_tensor {
    int64_t n, first_chunk;
    double lr_factor; /* of the parameter's group */
    double decay;     /* 0 for excluded parameters */
    void *p, *m, *v;
    const void *g;
    void *p_act; /* NULL where act == acc */
} optim_tensor;

typedef struct optim_list {
    const optim_tensor *tensor; /* [n_tensors] on the device */
    int64_t n_tensors, first_chunk, n_chunks;
} optim_list;

typedef struct sum_squares_args {
    optim_list list;
    double *total;
} sum_squares_args;

/* On the device; doubles so that both backends share it. */
typedef struct step_scalars {
    double lr, beta1, beta2, eps;
    double bias1, bias2; /* 1 - beta^t */
    double grad_scale;   /* clip / weight_sum */
    double skip;         /* not 0: leave everything as it is */
    double grad_norm;    /* of the mean gradient, before clipping; for the log */
} step_scalars;

typedef struct step_finish_args {
    double max_norm;
    const double *sum_squares, *weight; /* [1] each */
    step_scalars *step;
} step_finish_args;

typedef struct adamw_args {
    optim_list list;
    const step_scalars *step;
} adamw_args;

#endif
