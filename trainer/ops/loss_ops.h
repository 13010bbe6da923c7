/* SPDX-License-Identifier: Apache-2.0 */
/* loss_ops.h: the cross entropy of a chunk of logits, the gradient norm, and AdamW with decoupled
 * weight decay (Loshchilov & Hutter 2019, arXiv:1711.05101).
 *
 * All scalars of a step that change from step to step lie in device memory (step_scalars) and are
 * written once per step by one small copy, so that a captured step needs no new arguments. */
#ifndef TESSERA_TRAINER_OPS_LOSS_OPS_H
#define TESSERA_TRAINER_OPS_LOSS_OPS_H

#include <stdbool.h>

#include "trainer/device/backend.h"
#include "trainer/ops/state_codes.h"

/* nll[i] = logsumexp(logits[i]) - logits[i, label[i]]; best[i] is the index of the largest logit,
 * the lowest on ties. loss_sum += weight nll and weight_sum += weight, in a fixed order. With
 * `backward`, logits[i] is replaced by weight (softmax - onehot), which is 0 for ignored rows. The
 * CPU answers BAD_INPUT for a label of `vocab` or more; a device that cannot see it ignores the
 * row. */
typedef struct xent_args {
    int64_t n, vocab;
    const int32_t *label; /* [n]; below 0: the row is ignored */
    const void *weight;   /* [n] acc; NULL: all 1 */
    void *logits;         /* [n, vocab] act */
    bool backward;
    void *nll;                     /* [n] acc, written; may be NULL */
    int32_t *best;                 /* [n], written; may be NULL */
    double *loss_sum, *weight_sum; /* [1] each on the device, added to */
} xent_args;

enum { OPTIM_CHUNK = 16384 }; /* elements of a chunk of work */

/* How adamw leaves a master weight. Rounded to bf16, it lies in act: bf16 on CUDA, and on the CPU a
 * `real` whose value is a bf16 number. */
typedef enum optim_rounding {
    OPTIM_WHOLE,  /* acc, not rounded */
    OPTIM_RANDOM, /* up or down at random, so that many small updates add up (state_codes.h) */
    OPTIM_NEAREST /* updates below half a step of bf16 are lost; for comparisons */
} optim_rounding;

/* Which random numbers round a tensor. The number of an element depends on the key, the step and
 * the element's place in the published tensor, and so not on which rank has it. Element i of the
 * tensor here is j = first + i of the rank's local tensor, whose published place is
 * base + j / run * stride + j % run. Eight neighbouring places share a block of Philox. */
typedef struct optim_random {
    uint32_t key[2];
    int64_t first, run, stride, base; /* run is above 0 */
} optim_random;

/* One tensor of an optim_list. p is the master weight, m and v are the moments and g is the sum of
 * gradients, all [n] at addresses that are multiples of 16; g is acc. AdamW of one element, with t
 * the step:
 *   g' = g grad_scale;  m = beta1 m + (1 - beta1) g';  v = beta2 v + (1 - beta2) g'^2
 *   p = p (1 - lr decay) - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
 * p is updated with the new moments as they are before they become codes. */
typedef struct optim_tensor {
    int64_t n, first_chunk;   /* the tensor's first chunk in the list's numbering */
    double lr_factor;         /* the group's learning rate as a factor of step_scalars.lr */
    double decay;             /* weight decay; 0 for parameters without it */
    void *p;                  /* acc; act unless rounding is OPTIM_WHOLE */
    void *m, *v;              /* acc, or codes of 8 bits (state_codes.h) if there are scales */
    float *m_scale, *v_scale; /* [ceil(n / STATE_BLOCK)]; both NULL: m and v are acc */
    const void *g;
    void *p_act; /* copy of p in act, written with it; NULL if act is acc, or p itself is act */
    optim_rounding rounding;
    optim_random random; /* for OPTIM_RANDOM */
} optim_tensor;

/* The tensors that sum_squares and adamw go over in one call. Work is cut into chunks of
 * OPTIM_CHUNK elements, and each tensor begins a new chunk. A run of a list's tensors is a list
 * too: first_chunk is the first tensor's. */
typedef struct optim_list {
    const optim_tensor *tensor; /* [n_tensors], the array itself on the device */
    int64_t n_tensors, first_chunk, n_chunks;
    bool coded; /* some of them have moments in codes or a rounded master weight */
} optim_list;

/* total += the sum of g^2 over the list, in a fixed order. total: [1] on the device. */
typedef struct sum_squares_args {
    optim_list list;
    double *total;
} sum_squares_args;

/* The scalars of one step, on the device.
 * They are doubles so that both backends share the struct. */
typedef struct step_scalars {
    double lr, beta1, beta2, eps;
    double bias1, bias2; /* 1 - beta1^t and 1 - beta2^t */
    double grad_scale;   /* clipping factor / sum of target weights */
    double skip;         /* not 0: the update changes nothing */
    double number;       /* of the step, a whole number; random rounding depends on it */
    double grad_norm;    /* norm of the mean gradient before clipping, for the log */
    double stopped;      /* unit_finish: 1 + the unit whose gradient was not finite; else 0 */
    double share;        /* unit_finish: unit_finish_args.share of the units so far, summed */
} step_scalars;

/* Computes grad_norm, grad_scale and skip of *step from the step's sums on the device: the norm of
 * the mean gradient is sqrt(sum_squares) / weight, grad_scale is min(1, max_norm / norm) / weight,
 * and skip is 1 if weight is 0 or the norm is not finite. max_norm 0: no clipping. */
typedef struct step_finish_args {
    double max_norm;
    const double *sum_squares, *weight; /* [1] each */
    step_scalars *step;
} step_finish_args;

/* Steps over which the running mean of the units' shares is taken, roughly. */
enum { UNIT_SHARE_STEPS = 10 };

/* Does for one unit, whose update follows in the middle of a backward pass, what step_finish does
 * for a step. The norm of the whole gradient is not known by then, but that of the units so far is,
 * and units come in the same order in every step. So the unit is clipped by an estimate,
 *
 *   sqrt(squares of the units so far / the share that these units had in the squares of earlier
 *        steps) / weight,
 *
 * which is not below the norm of the units so far. Where these had no share, as in the first step
 * of a run, the unit is clipped by its own norm.
 *
 * The first unit of a step sets skip if weight is not above 0 or the loss is not finite. A unit
 * whose squares are not finite sets skip and stopped; units before it have been updated by then,
 * and those after it are not. The last unit sets grad_norm, and the shares if nothing was skipped:
 * a share moves to what it is in this step by one part in UNIT_SHARE_STEPS, so that all of them
 * always add up to 1. One pass over `groups` numbers, and in the last unit over `units`. */
typedef struct unit_finish_args {
    int64_t unit, groups;
    int64_t units;    /* of the model; `unit` is below */
    bool first, last; /* of the units of a step */
    double max_norm;  /* 0: no clipping */
    /* On the device: the squares of the unit's gradients by group, and loss and target weights of
     * the step, of all ranks. */
    const double *squares, *loss, *weight;
    /* [groups] on the device: squares of all units so far in the groups up to this one; the first
     * unit begins with 0. */
    double *after_group;
    /* [units] each on the device: the squares of a unit in this step, 0 for units that are not
     * trained; and its part of the squares of earlier steps, 0 for all if there are none. */
    double *unit_squares, *share;
    step_scalars *step;
} unit_finish_args;

/* Updates every tensor of the list (see optim_tensor). */
typedef struct adamw_args {
    optim_list list;
    const step_scalars *step;
} adamw_args;

#endif
